"""GPUs and their driver, by NVML in a child that may be lost."""
