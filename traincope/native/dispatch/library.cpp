// What Python calls, by ctypes: small functions over plain numbers. `traincope/native/library.py` declares them.
//
// Only `install` and `remove` call the dispatcher. Every other one may run under Python's lock.

#include <pthread.h>

#include "callables.h"
#include "kernels.h"

namespace {

using namespace traincope;

// By this name torch reports where our kernels are from, wherever they were compiled.
constexpr char kFile[] = "traincope/native/dispatch/library.cpp";

torch::Library* c10d_kernels = nullptr;
torch::Library* wait_kernels = nullptr;

template <int Number>
int64_t reserve_at() {
  return reserve(places[Number]);
}

template <int... Numbers>
void* reserver(int number, std::integer_sequence<int, Numbers...>) {
  static constexpr int64_t (*functions[])() = {&reserve_at<Numbers>...};
  return reinterpret_cast<void*>(functions[number]);
}

// A forked child has none of the other threads, and the segments are its parent's.
void in_child() {
  shared.detailed.store(0);
  run_number.fetch_add(1);
  for (auto& place : places) {
    place.next.store(kRetired);
    place.writing.store(0);
    place.latest.store(nullptr);
  }
  for (auto& entry : pending) {
    entry.claimed.store(false);
    entry.open.store(kNone);
    entry.ticket.store(kNone);
  }
  for (auto& work : works) work.store(0);
  num_works.store(0);
  for (auto& stall : stalls) stall.taken.store(false);
  for (auto& group : groups)
    if (group.address.load() != nullptr) group.address.store(kForgotten);
}

// The C++ object of pybind11's wrapper, which follows the two words of every Python object.
const void* value_of(const void* object) { return static_cast<void* const*>(object)[2]; }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int64_t* traincope_shared() { return reinterpret_cast<int64_t*>(&shared); }

EXPORT void* traincope_reserver(int number) {
  return reserver(number, std::make_integer_sequence<int, kPlaces>());
}

// Prepares the process, once. Returns false if Python's operator is not there.
EXPORT bool traincope_prepare() {
  if (ask_operator != nullptr) return true;
  const auto found = c10::Dispatcher::singleton().findSchema({"traincope::ask", ""});
  if (!found.has_value()) return false;
  ask_operator = new c10::OperatorHandle(*found);
  pthread_atfork(nullptr, nullptr, &in_child);
  return true;
}

EXPORT void traincope_set_operation(int number, const int32_t* fields) {
  operations[number] = *reinterpret_cast<const Operation*>(fields);
}

// Registers the kernels of the operators with these names, in the order of their numbers.
EXPORT bool traincope_install(const char* const* names, int num_names) {
  try {
    c10d_kernels = new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, kFile, __LINE__);
    for (int number = 0; number < num_names; ++number)
      c10d_kernels->impl(names[number], kernel_of(number, std::make_integer_sequence<int, kOperations>()));
    wait_kernels = new torch::Library(
        torch::Library::IMPL, "_c10d_functional", c10::DispatchKey::BackendSelect, kFile, __LINE__);
    wait_kernels->impl("wait_tensor", torch::CppFunction::makeFromBoxedFunction<&wait_tensor>());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

EXPORT void traincope_remove() {
  delete std::exchange(wait_kernels, nullptr);
  delete std::exchange(c10d_kernels, nullptr);
}

// A run begins: no thread is bound, no group is known.
EXPORT void traincope_begin_run() {
  run_number.fetch_add(1);
  for (auto& group : groups)
    if (group.address.load() != nullptr) group.address.store(kForgotten);
}

// Nothing waits any more. What a callback closes will still be closed. Returns the number of forgotten collectives.
EXPORT int64_t traincope_end_waits() {
  for (auto& place : places) drop_latest(place);
  for (auto& entry : pending) {
    if (!entry.completes.load()) leave_open(entry.open.load());
    let_go(entry.ticket.load());
  }
  for (auto& tensor : tensors) tensor.address.store(0);
  num_reducer_calls_taken = num_reducer_calls.load();
  return shared.forgotten.exchange(0);
}

// Between windows no later collective takes the place of a thread's newest message.
EXPORT void traincope_take_latest() {
  for (auto& place : places) contained([&] { take_latest(place); });
}

EXPORT void traincope_thread_ended(int number) { drop_latest(places[number]); }

// `begin_phase` as a function of Python's. Null if Python's functions are not visible.
EXPORT PyObject* traincope_callable() {
  return PyCFunction_NewEx == nullptr ? nullptr : PyCFunction_NewEx(&begin_phase_definition, nullptr, nullptr);
}

EXPORT void traincope_bind(int number) {
  bound_place = number;
  bound_run = run_number.load();
}

EXPORT void* traincope_begin_segment(int number, void* base, int64_t offset, int64_t limit, void* words) {
  return begin_segment(number, static_cast<char*>(base), offset, limit, words);
}

EXPORT int64_t traincope_next_offset(int number) { return places[number].next.load() & kOffsets; }

EXPORT int64_t traincope_retire(int number) { return retire(places[number]); }

EXPORT bool traincope_release_segment(void* segment) { return release_segment(static_cast<Segment*>(segment)); }

EXPORT bool traincope_set_group(
    int64_t address, int64_t number, const int32_t* ranks, int num_ranks, bool completes, bool reducer, bool asks) {
  const auto* key = reinterpret_cast<const void*>(address);
  Group* group = add_group(key);
  if (group == nullptr) return false;
  group->number.store(static_cast<uint32_t>(number));
  group->completes.store(completes);
  group->reducer.store(reducer);
  group->asks.store(asks);
  if (group->ranks.load() == nullptr || group->num_ranks.load() != num_ranks ||
      !std::equal(ranks, ranks + num_ranks, group->ranks.load())) {
    auto* copy = new int32_t[num_ranks];  // the old one stays, because another thread may read it
    std::copy(ranks, ranks + num_ranks, copy);
    group->num_ranks.store(0);
    group->ranks.store(copy);
    group->num_ranks.store(num_ranks);
  }
  group->address.store(key);
  return true;
}

EXPORT void traincope_forget_group(int64_t address) { forget_group(reinterpret_cast<const void*>(address)); }

EXPORT int64_t traincope_value_of(const void* object) { return reinterpret_cast<int64_t>(value_of(object)); }

// Returns the number of a wait's stall. If there is no room, -ticket: Python makes some and calls `begin_stall`.
int64_t number_of(const Stall* stall, Ticket ticket) {
  return stall == nullptr ? -static_cast<int64_t>(ticket) : stall - stalls;
}

// The wait for a work, by its Python object. Returns -1 if its collective is unknown.
EXPORT int64_t traincope_begin_wait(const void* object) {
  auto* work = static_cast<c10d::Work*>(const_cast<void*>(value_of(object)));
  const Ticket ticket = work == nullptr ? kNone : take_work(work);
  if (ticket == kNone) return -1;
  const int64_t start_ns = monotonic_ns();
  shared.waits.fetch_add(1, std::memory_order_relaxed);
  if (is_open(ticket) && !entry_of(ticket).completes.load())
    contained([&] {
      if (work->isCompleted()) close_pending(ticket, start_ns, kDoneBeforeWait);
    });
  return number_of(begin_wait(ticket, start_ns), ticket);
}

EXPORT int64_t traincope_begin_stall(int64_t ticket) {
  return number_of(begin_wait(static_cast<Ticket>(ticket), monotonic_ns()), static_cast<Ticket>(ticket));
}

EXPORT void traincope_end_wait(int64_t stall) { end_stall(stalls[stall], false); }

EXPORT void traincope_end_raised(int64_t stall) { end_stall(stalls[stall], true); }

// DDP has waited for its collectives in C++. Closes those that are open, also before a callback that comes late, and
// writes the stall, whose collective is the first or the last of them. Returns whether there were any; -1 if there is
// no room for the stall.
EXPORT int traincope_end_reducer(bool until_first, bool unless_waited, bool without_stall) {
  const uint32_t end = num_reducer_calls.load(), begin = num_reducer_calls_taken;
  if (begin == end) return 0;
  const uint32_t first = end - begin > kReducerCalls ? end - kReducerCalls : begin;
  const auto call = [](uint32_t number) { return reducer_calls[number % kReducerCalls].load(); };
  const Ticket last = call(end - 1), chosen = until_first ? call(first) : last;
  const bool was_waited = !is_valid(last) || entry_of(last).waited.load();
  const int64_t now = monotonic_ns();
  Fields fields;
  if (!(unless_waited && was_waited) && !without_stall && read_fields(chosen, fields)) {
    Opened stall;
    if (Place* place = bound()) stall = open_record(*place, kStall, fields, entry_of(chosen).returned_ns.load());
    if (stall.record == nullptr) return -1;
    close_record(stall.record, stall.segment, now);
  }
  for (uint32_t number = first; number != end; ++number) {
    const Ticket ticket = call(number);
    close_pending(ticket, now, ticket == last ? 0 : kDoneBeforeWait);
    let_go(ticket);
  }
  num_reducer_calls_taken = end;
  return 1;
}
