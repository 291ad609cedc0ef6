"""Training data: once a machine, in an order that does not depend on the number of ranks.

columns         samples out of mapped memory: columns, and data sets made of them
file_formats    where the columns of a .npy, .npz, .safetensors or Arrow file lie
mapped          `wide.mapped`: a file as a data set, without loading it
packing         pure: a nest of tensors, arrays and strings as one stretch of bytes, and back
shared_memory   memory of one host that ranks and DataLoader workers map
shared          `wide.shared_dataset`: built by one rank of a host, mapped by the others
permutation     pure: the i-th number of a shuffled order, without the order
loader_worker   a worker of a DataLoader at SIGTERM
order           pure: the order of an epoch, its batches, and the ranks' parts of them
cursor          pure: what was handed out, and what counts
batches         `wide.Batches`: each rank's part of each global batch, and a DataLoader over them
"""
