"""The training layer: one copy of the weights a host, and gradients that meet where they lie.

parallel    `Parallel`, what a user holds: the hooks, and one step from gradients to weights
checks      which models, optimizers and ranks cannot be trained this way, in a sentence each
layout      pure: where parameters lie in the memory, and which rank updates which part
memory      the host's segment: control words, weights, each rank's gradients
gradient    what stands in `p.grad` between backward and step
reduce      the average of the ranks' gradients, where they lie
optimizer   the optimizer's work divided over the ranks of a host
state       its state in shared memory, whole on every rank
texts       ranks tell each other short texts
"""
