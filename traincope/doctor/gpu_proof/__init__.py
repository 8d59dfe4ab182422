"""Proof of the GPU path on a user's GPUs: the recorder's ledger against torch's trace of the same steps.

`launching` starts one process per GPU, `training` is what each process trains, `traced_marks` reads a trace and
compares it with a ledger, `judging` makes the proof of the files that the processes leave, `proof` is the result,
`text` prints it and makes its JSON. `make test-gpu` uses the same training and the same comparison.
"""

from traincope.doctor.gpu_proof.launching import prove
from traincope.doctor.gpu_proof.proof import Proof
from traincope.doctor.gpu_proof.text import render_proof, to_proof_document

__all__ = ["Proof", "prove", "render_proof", "to_proof_document"]
