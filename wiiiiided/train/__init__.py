"""The training layer: one copy of the weights a host, and gradients that meet where they lie.

parallel             `Parallel`, the object a user holds: the hooks on model and optimizer
checks               the models, optimizers and ranks that cannot be trained so, a sentence each
layout               pure: where parameters and gradients lie, and which rank updates which part
memory               the host's segment: control words, weights, rows of gradients
shared_model         a model's parts on this host: memory, weights, pieces, state, gradients
weights              parameters in shared memory, and writes from outside
unaveraged_gradient  the tensor in `p.grad` between backward and step
updates              a user's choice of how ranks update the weights
between              a user's choices for the exchange between hosts
round_length         how many steps between two exchanges, and how their average is applied
outer_step           every step inside a host, every H steps between hosts
fragments            parts of the weights, which travel at once or while ranks compute on
outer_optimizer      the optimizer that applies what hosts have learnt, fragment by fragment
side_groups          process groups that a run makes for itself
residuals            the rest that lossy gradients leave for the next exchange, by parameter
gradient_store       from each rank's backward to the average of all
training_loop        the loop's data and scheduler, and their states
loop_step            a step, weighted by samples, that commits them
rng                  the random generators of a process, as plain values
noise_scale          pure: how large a batch the gradients want
sync_step            one step of all ranks together
async_step           each rank at its own pace, within a bound
optimizer            the optimizer's work divided over the ranks of a host
optimizer_state      its state in shared memory, whole on every rank
group_settings       learning rates and the like, which all ranks must share
small_collectives    all_gather and broadcast of what ranks must know of each other
checkpoints          the whole state of each host on its disk, and back
data                 the data set once a host
"""
