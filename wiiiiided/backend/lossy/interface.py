"""A lossy codec of gradients (quantization, sparsification): fewer bytes, with error feedback.

    encode      values ──┐                    ┌──► coded      what travels
                         +──► what is meant ──┼──► values     what a decoder makes of it
                residual ┘                    └──► residual   what is left: added the next time

So nothing is lost, only late: over any number of encodings the inputs add up to the outputs and one
residual. And the sender has what the receivers have, bit by bit, without decoding.

Why these are not codecs of a link (`backend.codec`): a residual belongs to a parameter, outlives
links and is saved with the model; the sender needs its own rounded values; and with more than two
hosts the sum of what was decoded is encoded once more. So a collective encodes, and what a link
carries are bytes, on which its exact codec may try its luck (unused rows of an embedding are zeros,
coded or not).

Rules:

- The size of the coded bytes depends on the number of elements alone: places can be posted.
- What decodes is one multiplication or none, so all processors come to the same bits. In
  particular there is no "decode and add", which some of them would round once and some twice.
- NaN and the infinities arrive as what they are, and leave a residual of zero. Each codec says
  what else becomes of their neighbours.
- Work goes in steps that stay in the L2 cache, in buffers that are made once: with temporaries the
  page faults cost seven times what the arithmetic does. numpy only, which never starts threads
  beside those of the training (`shm.kernels`); it is as fast as torch's single thread here.
- Memory is flat and contiguous. One codec object serves one thread.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np

# Elements worked on at a time: four float32 arrays of it fill a 1 MiB L2 cache (bench/codec.py).
STEP: Final = 64 * 1024

Floats = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class GradientCodec(Protocol):
    """One way to write gradients. `name` is what a user says."""

    name: str

    def coded_bytes(self, count: int) -> int:
        """How many bytes so many elements take; more elements never take fewer."""

    def encode(self, values: Floats, residual: Floats, coded: Bytes) -> None:
        """Write `values + residual`; they become what `decode` gives, and what is left."""

    def decode(self, coded: Bytes, values: Floats) -> None:
        """Fill `values`. The bytes are a peer's, not verified: BadPayload where they cannot be."""
