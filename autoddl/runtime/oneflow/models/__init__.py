"""Plain single-device OneFlow models that come with autoddl.

A builder makes a module; an entry function (`gpt_small`, `vgg13`, ...) returns
`(model, example, loss)`, where the example is the model's inputs and the target for one global
batch, of the right shapes but without data.
"""

from .alexnet import alexnet, alexnet_small
from .dlrm import dlrm, dlrm_small
from .gpt import gpt3_175b, gpt_0_35b, gpt_5_8b, gpt_6_8b, gpt_16b, gpt_36b, gpt_small
from .moe import bert_moe_8, bert_moe_64, bert_switch_8, gpt_moe_small, vit_switch_8
from .vgg import vgg13, vgg13_small

__all__ = [
    "alexnet",
    "alexnet_small",
    "bert_moe_64",
    "bert_moe_8",
    "bert_switch_8",
    "dlrm",
    "dlrm_small",
    "gpt3_175b",
    "gpt_0_35b",
    "gpt_16b",
    "gpt_36b",
    "gpt_5_8b",
    "gpt_6_8b",
    "gpt_moe_small",
    "gpt_small",
    "vgg13",
    "vgg13_small",
    "vit_switch_8",
]
