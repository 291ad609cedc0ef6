"""Checkpoints: a host's whole state in one file, written beside training.

policy        where to save, how often, how many to keep
file          the bytes of a file, its name, its checks
owner         the owner of a file, where jobs save to one folder
writer        a process of its own that writes one: atomically, and only then removes old ones
signals       the requests of warn_signal and SIGTERM
saving        when to save, the copy between two steps, the writer's end
exchange      the newest file that any host has, brought to all of them
resuming      the checkpoint that a run goes on from
one_file      `wide.save` and `wide.load`
dcp           torch's distributed checkpoint: it reads ours, and a run starts from one of its
safetensors   the model alone, for others to read
"""
