"""Tests of `traincope.preflight`: pure functions against answers by hand, and real ranks."""
