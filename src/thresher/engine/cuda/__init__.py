"""The packed classifier on NVIDIA GPUs, from the kernels next door: with library products, or as one CUDA graph."""
