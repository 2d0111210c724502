//! Shared buffers: blocks, pools, byte rings, bitmaps. The only hand-written atomics.
