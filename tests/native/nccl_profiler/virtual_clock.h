// A clock that a test sets, in place of the host's monotonic one. Compile the plugin with `-include` of this file.
#pragma once

#include <time.h>

#include <cstdint>

extern "C" __attribute__((visibility("default"), used)) int64_t virtual_ns = 0;

inline int virtual_clock_gettime(clockid_t, timespec* now) {
  now->tv_sec = virtual_ns / 1'000'000'000;
  now->tv_nsec = virtual_ns % 1'000'000'000;
  return 0;
}

#define clock_gettime virtual_clock_gettime
