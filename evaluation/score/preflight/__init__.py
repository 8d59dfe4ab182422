"""Score of `traincope preflight`: four real hosts with a fault of a known place, and healthy ones."""
