// NCCL's profiler interface, versions 3 to 6: what this plugin reads of it. docs/reference/nccl-plugin.md has the source of each
// statement. Fields that are not read are named by their types only, to keep the places of the others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace traincope::nccl {

using Result = int;
constexpr Result kSuccess = 0;

// Kinds of events, which are also the bits of the mask that `init` sets.
constexpr uint64_t kGroupEvent = 1 << 0, kCollectiveEvent = 1 << 1, kMessageEvent = 1 << 2, kChannelEvent = 1 << 6;
// Parents of version 5. NCCL starts them if it starts any of their children.
constexpr uint64_t kGroupCall = 1 << 8, kCollectiveCall = 1 << 9, kMessageCall = 1 << 10;

constexpr int kChannelEnded = 22;  // a state of a channel's event, with its end on the device

// From NCCL 2.26.2 on. Here each event names its communicator.
struct DescriptorV3 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      const char* communicator_name;
      uint64_t communicator;
      uint64_t sequence;
      const char* function;
      const void* send_buffer;
      void* receive_buffer;
      size_t count;
      int root;
      const char* datatype;
      uint8_t max_channels, warps;
      const char *algorithm, *protocol;
    } collective;
    struct {
      const char* communicator_name;
      uint64_t communicator;
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
    } message;
  };
};

// What versions 4 to 6 share. Version 5 widens the type, and adds fields behind these.
template <class Type>
struct DescriptorOf {
  Type type;
  void* parent;
  int rank;
  union {
    struct {
      uint64_t sequence;
      const char* function;
      const void* send_buffer;
      void* receive_buffer;
      size_t count;
      int root;
      const char* datatype;
      uint8_t channels, warps;
      const char *algorithm, *protocol;
    } collective;
    struct {
      const char* function;
      void* buffer;
      const char* datatype;
      size_t count;
      int peer;
      uint8_t channels;
    } message;
    struct {
      uint8_t channel;
      uint64_t start;  // the GPU's global timer, in ns
    } channel;
  };
};

using DescriptorV4 = DescriptorOf<uint8_t>;   // from NCCL 2.27.3 on
using DescriptorV5 = DescriptorOf<uint64_t>;  // from NCCL 2.28.3 on; version 6, from 2.29.2 on, begins like it

// The argument of a state, from version 4 on.
struct ChannelEnd {
  uint64_t stop;
};

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);

template <class Init, class Descriptor>
struct Profiler {
  const char* name;
  Init* init;
  Result (*start_event)(void* context, void** handle, Descriptor* descriptor);
  Result (*stop_event)(void* handle);
  Result (*record_state)(void* handle, int state, ChannelEnd* arguments);
  Result (*finalize)(void* context);
};

using InitV3 = Result(void** context, int* mask);
using InitV4 = Result(
    void** context, int* mask, const char* name, uint64_t communicator, int nodes, int ranks, int rank, Logger);
using InitV5 = Result(
    void** context, uint64_t communicator, int* mask, const char* name, int nodes, int ranks, int rank, Logger);

static_assert(offsetof(DescriptorV3, collective) == 24 && offsetof(DescriptorV4, collective) == 24);
static_assert(offsetof(DescriptorV5, collective) == 24 && offsetof(DescriptorV5, parent) == 8);

}  // namespace traincope::nccl
