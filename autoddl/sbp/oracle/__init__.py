"""Proofs on simulated devices, in NumPy: of operator signatures, and of paths (`paths`).

For an operator f with inputs x and one signature per mesh axis, `prove` checks

    f(x)         = assemble(outs,     f_local(scatter(ins, x)))
    vjp_f(x, dy) = assemble(grad_ins, vjp_f_local(scatter(ins, x), scatter(grad_outs, dy)))

where `scatter` cuts a tensor into shards (Partial: random summands of it) and `assemble` puts
them together again (Partial: sums them; Broadcast: all copies must be equal).

f is given as a `Kernel`, a function of the local inputs, the local attributes and the `Shard`
(where this device's tensors begin). It returns the outputs and their pullback, the function from
output gradients to input gradients. A kernel that communicates is a generator, and so is its
pullback: it yields an `AllReduce` and is sent the sum or the maximum over the axes whose
signature has an `inner`; their number and sizes must be those that `inner` states.
"""

from .devices import AllReduce as AllReduce
from .devices import Disproved as Disproved
from .devices import Lockstep as Lockstep
from .devices import assemble as assemble
from .devices import scatter as scatter
from .paths import Network as Network
from .paths import run_steps as run_steps
from .rules import Kernel as Kernel
from .rules import Placed as Placed
from .rules import Pullback as Pullback
from .rules import Shard as Shard
from .rules import fits as fits
from .rules import prove as prove
