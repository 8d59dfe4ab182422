// Threads that record, wait and complete while another one rolls the segments of their place, under ThreadSanitizer.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "groups.h"
#include "pending.h"

using namespace traincope;

namespace {

constexpr int kThreads = 3, kRounds = 60'000;
constexpr int64_t kBytes = 73 * sizeof(Record);
std::atomic<bool> over{false};
std::atomic<Ticket> handed{kNone};

// Rolls places as Python does: a segment in turn, freed when nothing can write to it any more.
void roll() {
  std::vector<std::pair<Segment*, char*>> retired;
  const auto release = [&] {
    for (size_t at = 0; at < retired.size();) {
      if (!release_segment(retired[at].first)) {
        ++at;
        continue;
      }
      std::free(retired[at].second);
      retired.erase(retired.begin() + at);
    }
  };
  std::pair<Segment*, char*> current[kThreads] = {};
  while (!over) {
    for (int number = 0; number < kThreads; ++number) {
      retire(places[number]);
      if (current[number].first != nullptr) retired.push_back(current[number]);
      auto* memory = static_cast<char*>(std::calloc(1, kBytes));
      current[number] = {begin_segment(number, memory, 0, kBytes), memory};
    }
    release();
    std::this_thread::yield();
  }
}

// Completes collectives of all threads, as gloo's threads do.
void complete() {
  while (!over) close_pending(handed.exchange(kNone), 2);
}

void record(int number) {
  Group& group = groups[0];
  for (int round = 0; round < kRounds; ++round) {
    Fields fields;
    fields.sequence = next_in_window(group.count, round / 100);
    fields.value = group.next_message(1, number, round % 1000, 7);
    const Opened opened = open_record(places[number], kCollective, fields, 1);
    if (opened.record == nullptr) {
      std::this_thread::yield();
      continue;
    }
    const Ticket ticket = add_pending(opened, fields);
    set_work(static_cast<uint32_t>(ticket), &fields);
    add_tensor(&fields, ticket);
    handed.store(ticket);
    if (round % 3 == 0) {
      const Ticket taken = take_work(&fields);
      Stall* stall = taken == kNone ? nullptr : begin_stall(places[number], taken, 1);
      if (stall != nullptr) end_stall(*stall, round % 2 == 0);
    } else if (round % 3 == 1) {
      close_pending(ticket, 3);
      let_go(ticket);
    }
  }
}

}  // namespace

int main() {
  std::vector<std::thread> helpers, recorders;
  helpers.emplace_back(roll);
  helpers.emplace_back(complete);
  for (int number = 0; number < kThreads; ++number) recorders.emplace_back(record, number);
  for (auto& thread : recorders) thread.join();
  over = true;
  for (auto& thread : helpers) thread.join();
  std::puts("done");
}
