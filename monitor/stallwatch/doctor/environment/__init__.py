"""Environment variables of NCCL, PyTorch, gloo, CUDA, DeepSpeed and accelerate."""
