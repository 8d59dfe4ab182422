// Calls of the native kernels, bare and recorded, between marks for callgrind. `instructions.py` reads the counts.
#ifdef WITHOUT_CALLGRIND  // under a sanitizer, which needs no marks
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_TOGGLE_COLLECT
#define CALLGRIND_DUMP_STATS_AT(name) static_cast<void>(name)
#else
#include <valgrind/callgrind.h>
#endif

#include "library.cpp"

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace {

constexpr int kCalls = 1'000, kWarmUp = 50;
constexpr int64_t kRoom = 8 * kCalls * sizeof(Record);

// A collective that is complete as soon as `finish` is called, as that of gloo by its threads.
struct PlainWork : c10d::Work {
  PlainWork() : future(c10::make_intrusive<c10::ivalue::Future>(c10::NoneType::get())) {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future; }
  bool isCompleted() override { return future->completed(); }
  c10::intrusive_ptr<c10::ivalue::Future> future;
};

struct PlainBackend : c10d::Backend {
  PlainBackend() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "plain"; }
  uint64_t getSequenceNumberForGroup() override { return 0; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<PlainWork>();
  }
};

int64_t answer(int64_t, const std::optional<c10::intrusive_ptr<c10d::ProcessGroup>>&, int64_t) { return 0; }

template <class Call>
void counted(const char* name, Call&& call) {
  for (int number = 0; number < kWarmUp; ++number) call();
  CALLGRIND_ZERO_STATS;
  CALLGRIND_TOGGLE_COLLECT;
  for (int number = 0; number < kCalls; ++number) call();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(name);
}

// The dispatcher's positions of allreduce_, as `operations.py` gives them.
void describe_all_reduce() {
  Operation operation{};
  operation.name = 1, operation.num_arguments = 6, operation.group = 1;
  operation.peer = operation.tag = kNowhere, operation.async_op = 4;
  operation.bytes = 0, operation.shape = kList, operation.fills = kList;
  traincope_set_operation(0, reinterpret_cast<const int32_t*>(&operation));
}

void give_room(char* memory) {
  traincope_retire(0);
  traincope_begin_segment(0, memory, 0, kRoom, nullptr);
  traincope_bind(0);
}

}  // namespace

int main() {
  torch::Library operators(torch::Library::FRAGMENT, "traincope", c10::nullopt, __FILE__, __LINE__);
  operators.def("ask(int question, __torch__.torch.classes.c10d.ProcessGroup? group, int address) -> int", &answer);
  auto group = c10::make_intrusive<c10d::ProcessGroup>(0, 1);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::CUSTOM, c10::make_intrusive<PlainBackend>());
  std::vector<at::Tensor> tensors{at::ones({4})};
  c10::intrusive_ptr<c10d::Work> work;
  const auto issue = [&] { work = group->allreduce(tensors); };
  const auto finish = [&] { static_cast<PlainWork&>(*work).future->markCompleted(); };
  const auto collective = [&] { issue(), finish(); };
  counted("bare collective", collective);

  const char* names[] = {"allreduce_"};
  const int32_t ranks[] = {0};
  describe_all_reduce();
  if (!traincope_prepare() || !traincope_install(names, 1)) return 1;
  traincope_begin_run();
  traincope_set_group(reinterpret_cast<int64_t>(group.get()), 1, ranks, 1, true, false, false);
  counted("collective without detail", collective);

  auto* memory = static_cast<char*>(std::calloc(1, kRoom));
  give_room(memory);
  shared.detailed = 1;
  counted("collective", collective);
  const int64_t recorded = traincope_next_offset(0) / static_cast<int64_t>(sizeof(Record));

  give_room(memory);
  const void* object[3] = {nullptr, nullptr, nullptr};  // as pybind11's wrapper: the object is its third word
  const auto wait = [&] {
    const int64_t stall = traincope_begin_wait(object);
    if (stall >= 0) traincope_end_wait(stall);
  };
  const auto waited = [&] {
    issue();
    finish();
    object[2] = work.get();
    wait();
  };
  counted("collective and wait", waited);
  counted("wait for an unknown work", wait);
  const int64_t stalls = traincope_next_offset(0) / static_cast<int64_t>(sizeof(Record)) - recorded;
  traincope_remove();
  std::printf("%ld %ld\n", static_cast<long>(recorded), static_cast<long>(stalls));
  return recorded == kCalls + kWarmUp && stalls == recorded && shared.dropped == 0 ? 0 : 1;
}
