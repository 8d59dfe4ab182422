"""Meanings of the well-known XIDs: the numbers by which NVIDIA's driver names a GPU's errors.

Source: NVIDIA's XID catalogue, https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, and for 171
and 172 https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/; the wording is ours. An XID names the place of an
error, not its cause: hence "mostly" where a program alone can cause it.
"""

MEANINGS = {
    8: "the GPU stopped processing",
    13: "graphics engine exception; mostly the program: an index out of bounds, an illegal instruction",
    31: "GPU memory page fault; mostly the program: an illegal address",
    32: "invalid or corrupted push buffer",
    38: "driver firmware error",
    43: "the GPU stopped processing for one program; mostly that program's own error",
    44: "graphics engine fault during a context switch",
    45: "a program's work was removed from the GPU; it follows an earlier error, or the program's end",
    46: "the GPU stopped processing",
    48: "uncorrectable (double bit) ECC error",
    61: "internal micro-controller breakpoint",
    62: "internal micro-controller halt",
    63: "a memory page was retired or a row marked for remapping",
    64: "a memory page or row could not be recorded as bad",
    68: "video decoder exception",
    69: "graphics engine class error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    92: "high rate of corrected (single bit) ECC errors",
    94: "contained uncorrectable ECC error: only the program it hit is lost",
    95: "uncontained uncorrectable ECC error: all programs on the GPU are hit",
    109: "context switch timeout",
    119: "the GPU's system processor (GSP) did not answer in time",
    120: "error in the GPU's system processor (GSP)",
    121: "chip-to-chip (C2C) link error",
    140: "unrecovered ECC error",
    143: "the GPU could not be initialised",
    154: "the driver reports that the GPU needs another recovery action than before",
    171: "uncorrectable ECC error in DRAM",
    172: "uncorrectable ECC error in SRAM",
}


def meaning(xid: int) -> str:
    """Return the meaning of an XID, or a reference to the catalogue."""
    return MEANINGS.get(xid, "see NVIDIA's XID catalogue")
