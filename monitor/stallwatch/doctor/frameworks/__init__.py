"""PyTorch, NCCL, DeepSpeed, Lightning, accelerate of the training interpreter."""
