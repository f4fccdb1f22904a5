"""What a stack frame means: whose code it is, and what the code of Python and PyTorch waits for there, as data."""
