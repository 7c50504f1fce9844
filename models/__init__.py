"""Plain single-device OneFlow models.

A builder makes a module; an entry function (`gpt_small`, `vgg13`, ...) returns
`(model, example, loss)`, where the example is the model's inputs and the target for one global
batch, of the right shapes but without data.
"""
