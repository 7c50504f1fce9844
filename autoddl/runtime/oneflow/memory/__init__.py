"""The memory that OneFlow itself plans for a job on CUDA devices, worked out without a GPU.

    plan --merge--> at most two mesh axes --replay--> nn.Graph on global tensors
         --autograd, optimiser, tags "cuda"--> OneFlow's compiler --plan--> bytes of each device

A process of its own compiles (`worker`), since OneFlow ends it where a device would be needed:
after the plan has been written down. `exact.exact_memory` starts it and reads the result.
"""
