"""Peak of memory that `traincope plan peak` computes, and the bytes that real ranks take from torch's allocator."""
