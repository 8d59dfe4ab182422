"""`traincope preflight`: its options, one rank of it, and its answer."""
