// Kernels before the operators of c10d and before wait_tensor: they write a record around the original, which they call
// exactly once. Its errors pass unchanged.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <utility>

#include "groups.h"
#include "operations.h"
#include "pending.h"

namespace torch::autograd {
TORCH_API int get_current_graph_task_id();
}

namespace traincope {

using torch::jit::Stack;

constexpr int64_t kAskForPlace = 0, kAskForGroup = 1;
constexpr int64_t kTimedEvery = 32;
constexpr int64_t kLongestNs = 20'000;  // a longer part of ours was interrupted
constexpr int kNoGraphTask = -1;

inline const c10::OperatorHandle* ask_operator = nullptr;  // of Python, registered for as long as the process lives
inline std::atomic<int64_t> num_timed{0};
inline std::atomic<bool> without_future[kOperations];  // whose works of gloo turned out to have none

inline c10::DispatchKeySet below() {
  return {c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect};
}

// Asks Python for what happens once: a group, or room for records. Exceptions of the training's signal handlers pass.
inline bool ask(int64_t question, c10::IValue group = {}, int64_t address = 0) {
  Stack stack;
  stack.reserve(3);
  stack.emplace_back(question);
  stack.emplace_back(std::move(group));
  stack.emplace_back(address);
  ask_operator->redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  return stack.back().toInt() != 0;
}

inline Opened open_here(uint8_t kind, const Fields& fields, int64_t start_ns) {
  Opened opened;
  if (Place* place = bound()) opened = open_record(*place, kind, fields, start_ns);
  if (opened.record == nullptr && ask(kAskForPlace)) {
    if (Place* place = bound()) opened = open_record(*place, kind, fields, start_ns);
  }
  return opened;
}

// The time of our own code in one call of 32, for all of them.
class Stopwatch {
 public:
  explicit Stopwatch(int64_t now)
      : timed_(num_timed.fetch_add(1, std::memory_order_relaxed) % kTimedEvery == 0), began_ns_(now) {}
  void pause() {
    if (timed_) add(monotonic_ns() - began_ns_);
  }
  void resume(int64_t now) { began_ns_ = now; }
  bool timed() const { return timed_; }

 private:
  static void add(int64_t spent_ns) {
    shared.own_ns.fetch_add(kTimedEvery * std::min(spent_ns, kLongestNs), std::memory_order_relaxed);
  }
  bool timed_;
  int64_t began_ns_;
};

// A call that is recorded, from before its original to after it.
struct Call {
  Ticket ticket = kNone;
  Group* group = nullptr;
  c10::IValue outputs;  // argument 0, if a tensor in it may be waited for
};

// The C++ object in an argument or a result; null for none. Its class is known from the operator's schema.
template <class Kind>
c10::intrusive_ptr<Kind> held_by(const c10::IValue& value) {
  return c10::static_intrusive_pointer_cast<Kind>(value.toObjectRef().getSlot(0).toCapsule());
}

inline Group* group_of(const c10::IValue& value, const c10d::ProcessGroup* address) {
  Group* group = find_group(address);
  if (group != nullptr && !group->asks.load(std::memory_order_relaxed)) return group;
  return ask(kAskForGroup, value, reinterpret_cast<int64_t>(address)) ? find_group(address) : group;
}

// torch's count on the group plus 1, or 0 if it is unknown (`torch_private.sequence_number`).
inline int32_t torch_count(c10d::ProcessGroup& group) {
  try {
    return static_cast<int32_t>(1 + group.getSequenceNumberForGroup() % 0x7FFFFFFF);
  } catch (const std::exception&) {
    return 0;
  }
}

// Closes the newest message of this thread if it is complete: that may be its only visible end.
inline void take_latest(Place& place) {
  if (place.latest.load(std::memory_order_relaxed) == nullptr) return;
  auto* raw = static_cast<c10d::Work*>(place.latest.exchange(nullptr));
  if (raw == nullptr) return;
  const auto work = c10::intrusive_ptr<c10d::Work>::reclaim(raw);
  const Ticket ticket = place.latest_ticket.load();
  if (is_open(ticket) && work->isCompleted()) {
    close_pending(ticket, monotonic_ns(), kDoneBeforeWait);
    forget_work(raw);
    let_go(ticket);
  }
}

inline void count_call(const Operation& operation) {
  auto& counter = operation.counted == kAsCollective ? shared.collectives
                  : operation.counted == kAsMessage  ? shared.messages
                                                     : shared.incomparable;
  counter.fetch_add(1, std::memory_order_relaxed);
}

inline void begin(const Operation& operation, Arguments arguments, Call& call, int64_t start_ns) {
  const at::Tensor* first = first_tensor(arguments[0]);
  if (first != nullptr && !is_real(*first)) return;
  count_call(operation);
  const auto process_group = held_by<c10d::ProcessGroup>(arguments[operation.group]);
  Group* group = group_of(arguments[operation.group], process_group.get());
  if (group == nullptr) return;
  Fields fields;
  fields.name = operation.name;
  fields.group = group->number.load(std::memory_order_relaxed);
  fields.window = static_cast<uint32_t>(shared.window.load(std::memory_order_relaxed));
  fields.value = message_bytes(operation, arguments);
  if (fields.value != 0) fields.flags = element_flags(first);
  if (operation.peer != kNowhere) fields.peer = static_cast<int32_t>(arguments[operation.peer].toInt());
  if (operation.tag == kNowhere) {
    fields.sequence = next_in_window(group->count, fields.window);
    if (fields.sequence == 0) fields.tag = torch_count(*process_group);
    if (operation.async_op != kNowhere && arguments[operation.async_op].toBool()) fields.flags |= kAsync;
  } else {
    fields.peer = group->global_rank(fields.peer);
    fields.tag = static_cast<int32_t>(arguments[operation.tag].toInt());
    fields.flags |= kPointToPoint;
    fields.sequence = group->next_message(&operation - operations, fields.peer, fields.tag, fields.window);
  }
  const Opened opened = open_here(kCollective, fields, start_ns);
  if (opened.record == nullptr) return;
  call.group = group;
  call.ticket = add_pending(opened, fields);
  if (operation.fills != kNothing) call.outputs = arguments[0];
}

// The instant at which a work of gloo is complete, from its future. False if it has none, as its messages.
inline bool closes_by_callback(const Operation& operation, c10d::Work& work, Ticket ticket) {
  auto& without = without_future[&operation - operations];
  if (without.load(std::memory_order_relaxed)) return false;
  try {
    const auto future = work.getFuture();
    if (!future) return false;
    entry_of(ticket).completes.store(true);
    future->addCallback([ticket](c10::ivalue::Future&) noexcept { close_pending(ticket, monotonic_ns()); }, false);
    return true;
  } catch (const c10::Error&) {
    entry_of(ticket).completes.store(false);
    without.store(true);
    return false;
  }
}

inline void add_outputs(const c10::IValue& outputs, Ticket ticket) {
  int32_t num_tensors = 0;
  const auto add = [&](const c10::IValue& value) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined() || !tensor.has_storage()) return;
    add_tensor(tensor.const_data_ptr(), ticket);
    ++num_tensors;
  };
  if (outputs.isTensor()) {
    add(outputs);
  } else {
    for (const auto& tensor : outputs.toListRef()) add(tensor);
  }
  entry_of(ticket).waits_left.store(std::max(num_tensors, 1));
}

inline void returned(const Operation& operation, const Stack& stack, Call& call) {
  if (operation.blocking != 0) {
    close_pending(call.ticket, monotonic_ns());
    return let_go(call.ticket);
  }
  const auto work = held_by<c10d::Work>(stack.back());
  forget_work(work.get());
  if (call.ticket == kNone) return;
  if (!work) {
    close_pending(call.ticket, monotonic_ns());
    return let_go(call.ticket);
  }
  Place* place = bound();
  if (place != nullptr) take_latest(*place);
  set_work(static_cast<uint32_t>(call.ticket), work.get());
  if (!call.outputs.isNone()) add_outputs(call.outputs, call.ticket);
  const bool is_message = operation.tag != kNowhere;
  const bool closes = !is_message && call.group->completes.load() && closes_by_callback(operation, *work, call.ticket);
  if (!closes && place != nullptr) {
    place->latest_ticket.store(call.ticket);
    place->latest.store(c10::intrusive_ptr<c10d::Work>(work).release());
  }
  if (call.group->reducer.load(std::memory_order_relaxed) &&
      (shared.in_pre_forward.load(std::memory_order_relaxed) != 0 ||
       torch::autograd::get_current_graph_task_id() != kNoGraphTask)) {
    entry_of(call.ticket).returned_ns.store(monotonic_ns());
    reducer_calls[num_reducer_calls.fetch_add(1) % kReducerCalls].store(call.ticket);
  }
}

// Runs a part of ours. Its errors cost a record; those of a signal handler's, from Python, are the training's.
template <class Part>
void ours(Part&& part) {
  try {
    part();
  } catch (const c10::Error&) {
    shared.dropped.fetch_add(1);
  } catch (const std::bad_alloc&) {
    shared.dropped.fetch_add(1);
  }
}

// The same for a part that asks Python nothing: a backend may throw anything.
template <class Part>
void contained(Part&& part) {
  try {
    part();
  } catch (...) {
    shared.dropped.fetch_add(1);
  }
}

inline void around(
    const Operation& operation, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const int64_t start_ns = monotonic_ns();
  Stopwatch stopwatch(start_ns);
  Call call;
  ours([&] { begin(operation, &(*stack)[stack->size() - operation.num_arguments], call, start_ns); });
  stopwatch.pause();
  try {
    op.redispatchBoxed(keys, stack);
  } catch (...) {
    close_pending(call.ticket, monotonic_ns(), kRaised);
    let_go(call.ticket);
    throw;
  }
  if (stopwatch.timed()) stopwatch.resume(monotonic_ns());
  contained([&] { returned(operation, *stack, call); });
  stopwatch.pause();
}

// A call between windows, which leaves no record.
inline void pass(const Operation& operation, const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  count_call(operation);
  op.redispatchBoxed(keys, stack);
  if (num_works.load(std::memory_order_relaxed) != 0 && operation.blocking == 0)
    contained([&] { forget_work(held_by<c10d::Work>(stack->back()).get()); });
}

template <int Number>
void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const auto proceed = shared.detailed.load(std::memory_order_relaxed) == 0 ? pass : around;
  proceed(operations[Number], op, keys & below(), stack);
}

// Drops the strong reference to a thread's newest message: the caller of its wait holds it.
inline void drop_latest(Place& place) {
  if (auto* raw = static_cast<c10d::Work*>(place.latest.exchange(nullptr)))
    c10::intrusive_ptr<c10d::Work>::reclaim(raw).reset();
}

// Opens the stall of a wait. Returns null without room: then Python is to be asked for some.
inline Stall* begin_wait(Ticket ticket, int64_t start_ns) {
  Place* place = bound();
  if (place == nullptr) return nullptr;
  if (place->latest_ticket.load(std::memory_order_relaxed) == ticket) drop_latest(*place);
  return begin_stall(*place, ticket, start_ns);
}

inline void wait_tensor(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  Stall* stall = nullptr;
  ours([&] {
    const at::Tensor& tensor = stack->back().toTensor();
    if (!tensor.defined() || !is_real(tensor) || !tensor.has_storage()) return;
    const Ticket ticket = take_tensor(tensor.const_data_ptr());
    if (ticket == kNone) return;
    const int64_t start_ns = monotonic_ns();
    stall = begin_wait(ticket, start_ns);
    if (stall == nullptr && ask(kAskForPlace)) stall = begin_wait(ticket, start_ns);
  });
  try {
    op.redispatchBoxed(keys & below(), stack);
  } catch (...) {
    if (stall != nullptr) end_stall(*stall, true);
    throw;
  }
  if (stall != nullptr) end_stall(*stall, false);
}

using Boxed = void(const c10::OperatorHandle&, c10::DispatchKeySet, Stack*);

template <int... Numbers>
torch::CppFunction kernel_of(int number, std::integer_sequence<int, Numbers...>) {
  torch::CppFunction (*const makers[])() = {[] {
    return torch::CppFunction::makeFromBoxedFunction<static_cast<Boxed*>(&kernel<Numbers>)>();
  }...};
  return makers[number]();
}

}  // namespace traincope
