"""A kernel that notes for each of its blocks the SM that ran it. As PTX: the driver compiles it for what it finds."""

from __future__ import annotations

KERNEL = "note_smid"
"""Arguments: the address of a 32-bit word for each block, and how long a block stays, in cycles of the SM (64 bits)."""

# A block that stays for a while keeps its place, so that the next ones have to go to other SMs. sm_75 is the oldest
# that CUDA 13 knows; code for it runs on everything newer.
PTX = b"""
.version 6.3
.target sm_75
.address_size 64

.visible .entry note_smid(.param .u64 ids, .param .u64 spin_cycles)
{
    .reg .pred %spinning;
    .reg .b32 %block, %sm;
    .reg .b64 %table, %slot, %begin, %now, %spin;

    ld.param.u64 %table, [ids];
    ld.param.u64 %spin, [spin_cycles];
    mov.u32 %block, %ctaid.x;
    mov.u32 %sm, %smid;
    cvta.to.global.u64 %table, %table;
    mul.wide.u32 %slot, %block, 4;
    add.s64 %slot, %slot, %table;
    st.global.u32 [%slot], %sm;
    mov.u64 %begin, %clock64;
WAIT:
    mov.u64 %now, %clock64;
    sub.s64 %now, %now, %begin;
    setp.lt.u64 %spinning, %now, %spin;
    @%spinning bra WAIT;
    ret;
}
\0"""
