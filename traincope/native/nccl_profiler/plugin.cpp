// The plugin that NCCL loads by NCCL_PROFILER_PLUGIN: one table of functions for each version of its interface. Python
// loads the same file, and gives it the segments for its records.

#include "interface.h"
#include "under_way.h"

namespace {

using namespace traincope;
using namespace traincope::nccl;

#define EXPORT extern "C" __attribute__((visibility("default")))

constexpr int kMask = kCollectiveEvent | kMessageEvent | kChannelEvent;
constexpr char kName[] = "traincope";

Result begin_communicator(
    int version, void** context, int* mask, uint64_t hash, int nodes, int ranks, int rank) noexcept {
  *mask = kMask;
  *context = &add_communicator(version, hash, nodes, ranks, rank);
  return kSuccess;
}

Result init_v3(void** context, int* mask) noexcept { return begin_communicator(3, context, mask, 0, 0, 0, -1); }

Result init_v4(
    void** context, int* mask, const char*, uint64_t hash, int nodes, int ranks, int rank, Logger) noexcept {
  return begin_communicator(4, context, mask, hash, nodes, ranks, rank);
}

template <int Version>
Result init_v5(
    void** context, uint64_t hash, int* mask, const char*, int nodes, int ranks, int rank, Logger) noexcept {
  return begin_communicator(Version, context, mask, hash, nodes, ranks, rank);
}

// Version 3 gives the most channels that a collective may use, and nothing on a message's. So they are unknown.
uint32_t channels_of(const auto& described) {
  if constexpr (requires { described.channels; }) return described.channels;
  return 0;
}

template <class Descriptor>
Result start_event(void* context, void** handle, Descriptor* event) noexcept {
  *handle = nullptr;
  if (context == nullptr || counts.recording.load(std::memory_order_relaxed) == 0) return kSuccess;
  auto& communicator = *static_cast<Communicator*>(context);
  switch (event->type) {
    case kCollectiveEvent: {
      const auto& of = event->collective;
      if constexpr (requires { of.communicator; }) name_communicator(communicator, of.communicator, event->rank);
      *handle = begin_operation(
          communicator, {of.function, of.algorithm, of.protocol, of.datatype, of.sequence, of.count, of.root,
                         channels_of(of), false});
      break;
    }
    case kMessageEvent: {
      const auto& of = event->message;
      if constexpr (requires { of.communicator; }) name_communicator(communicator, of.communicator, event->rank);
      *handle = begin_operation(
          communicator, {of.function, nullptr, nullptr, of.datatype, 0, of.count, of.peer, channels_of(of), true});
      break;
    }
    case kChannelEvent: {
      int64_t start_ns = 0;
      if constexpr (requires { event->channel; }) start_ns = static_cast<int64_t>(event->channel.start);
      *handle = begin_channel(event->parent, start_ns);
      break;
    }
    case kGroupEvent:  // NCCL 2.26 and 2.27 give no operation to a plugin that takes no group
      *handle = ticket_of(0, 0, kOfParent);
      break;
    default:
      if (event->type == kGroupCall || event->type == kCollectiveCall || event->type == kMessageCall)
        *handle = ticket_of(0, 0, kOfParent);
  }
  return kSuccess;
}

// From version 4 on, a channel ends by its state: that has the time.
template <bool EndsChannels>
Result stop_event(void* handle) noexcept {
  if (kind_of(handle) == kOfOperation) end_call(handle);
  if (EndsChannels) end_channel(handle, 0);
  return kSuccess;
}

Result record_state(void* handle, int state, ChannelEnd* arguments) noexcept {
  if (state == kChannelEnded && arguments != nullptr)
    end_channel(handle, static_cast<int64_t>(arguments->stop));
  return kSuccess;
}

Result no_state(void*, int, ChannelEnd*) noexcept { return kSuccess; }

Result finalize(void* context) noexcept {
  if (context == nullptr || context == &one_too_many) return kSuccess;
  auto& communicator = *static_cast<Communicator*>(context);
  communicator.is_live.store(false);
  give_up(communicator);
  return kSuccess;
}

}  // namespace

extern "C" {
__attribute__((visibility("default"))) Profiler<InitV3, DescriptorV3> ncclProfiler_v3 = {
    kName, init_v3, start_event<DescriptorV3>, stop_event<true>, no_state, finalize};
__attribute__((visibility("default"))) Profiler<InitV4, DescriptorV4> ncclProfiler_v4 = {
    kName, init_v4, start_event<DescriptorV4>, stop_event<false>, record_state, finalize};
__attribute__((visibility("default"))) Profiler<InitV5, DescriptorV5> ncclProfiler_v5 = {
    kName, init_v5<5>, start_event<DescriptorV5>, stop_event<false>, record_state, finalize};
__attribute__((visibility("default"))) Profiler<InitV5, DescriptorV5> ncclProfiler_v6 = {
    kName, init_v5<6>, start_event<DescriptorV5>, stop_event<false>, record_state, finalize};
}

EXPORT void* traincope_shared() { return &shared; }

EXPORT void* traincope_counts() { return &counts; }

EXPORT void* traincope_begin_segment(int number, void* base, int64_t offset, int64_t limit, void*) {
  Segment* segment = begin_segment(number, static_cast<char*>(base), offset, limit);
  write_tables();
  return segment;
}

EXPORT int64_t traincope_next_offset(int number) { return places[number].next.load() & kOffsets; }

EXPORT void* traincope_reserver(int) {
  return reinterpret_cast<void*>(+[] { return reserve(places[kPlace]); });
}

EXPORT int64_t traincope_retire(int number) { return retire(places[number]); }

EXPORT bool traincope_release_segment(void* segment) { return release_segment(static_cast<Segment*>(segment)); }
