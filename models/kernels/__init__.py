"""What models share and what is fast: each compiled kernel beside its twin in plain torch.

May import bench's data types and other kernels, never a model.
"""
