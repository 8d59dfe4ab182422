// Decodes texts that are changed at random, each in a buffer of its exact size. Sanitizers see what is read and written.

#include <cstdio>
#include <memory>
#include <random>
#include <string>

#include "decoder.cpp"

constexpr char kText[] =
    R"({"ph": "M", "name": "n", "args": {"name": "p"}},
  { "ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 41, "tid": "42", "ts": 1762180953123456.789, "dur": 1.5,
    "args": { "External id": 1, "Input Dims": [[4, 8], [8, 2], []], "Input Strides": [[8, 1], []], "x": "\\u00e9\\n" } },
  { "ph": "X", "cat": "kernel", "name": "gemm<1, 2>", "pid": 0, "tid": 7, "ts": 2.000, "dur": 3,
    "args": { "grid": [1, 1, 1], "block": [128, 1, 1], "correlation": 9, "occupancy": -1.5e-05, "known": true } }
  ], "traceName": "t"})";
constexpr int kTexts = 200'000;

int main() {
  std::mt19937_64 random(41);
  Decoder* decoder = traincope_create_decoder();
  Row rows[8];
  int64_t num_rows = 0, num_refused = 0;
  for (int number = 0; number < kTexts; ++number) {
    std::string text = kText;
    text.resize(random() % (text.size() + 1));
    for (uint64_t changes = random() % 4; changes > 0 && !text.empty(); --changes) {
      text[random() % text.size()] = "\"\\{}[],:0e.-X\0\x80 \n"[random() % 17];
    }
    const auto exact = std::make_unique<char[]>(text.size() + 1);
    std::memcpy(exact.get(), text.c_str(), text.size() + 1);
    Decoded result;
    const auto size = static_cast<int64_t>(text.size());
    if (!traincope_decode(decoder, exact.get(), size, rows, number % 3, &result)) {
      ++num_refused;
      continue;
    }
    num_rows += result.num_rows;
    if (result.used > size || result.num_rows > result.num_read) std::abort();
  }
  for (int table = 0; table < kNumTables; ++table) {
    const int64_t count = traincope_num_texts(decoder, table);
    if (traincope_text_begins(decoder, table)[count] < count) std::abort();
  }
  traincope_destroy_decoder(decoder);
  if (num_rows == 0 || num_refused == 0) std::abort();
  std::puts("done");
}
