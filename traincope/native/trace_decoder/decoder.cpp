// The decoder of traces: the events in a piece of text -> a row for each one with a duration. It refuses text of any
// other form than torch's profiler writes; Python decodes that.

#include <algorithm>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <limits>
#include <string>

#include "json.h"
#include "texts.h"

namespace {

using namespace traincope::traces;

#define EXPORT extern "C" __attribute__((visibility("default")))

// An event with a duration (`native/decoder.py`). Codes are numbers of texts.
struct Row {
  int64_t start_ns, duration_ns, correlation, sequence, forward_thread, num_bytes;
  int32_t category, name, lane, launch;
  int32_t arguments_begin, arguments_end;  // in the text; both 0 without arguments
  int32_t flags, unused;
};
static_assert(sizeof(Row) == 80);

constexpr int32_t kShapes = 1, kStrides = 2, kCollective = 4, kUnusual = 8;  // flags
constexpr int32_t kNone = -1;

enum Table { kCategory, kName, kLane, kLaunch, kNumTables };

struct Decoder {
  Texts texts[kNumTables];
  std::string joined;   // room for texts of several parts
  bool failed = false;  // without memory; the texts are not whole
};

struct Decoded {
  int64_t num_rows, num_read, used;
};

using Value = std::string_view;  // as written; empty if absent

struct Event {
  Value phase, category = "\"\"", name = "\"\"", process = "\"\"", thread = "\"\"", start, duration, arguments;
  Value correlation, sequence, forward_thread, num_bytes, grid, block, shapes, strides, collective;
  bool unusual = false;  // its arguments have what a decoder may refuse
};

enum class Outcome { kRead, kCut, kOther };

Value* field_of(Event& event, std::string_view key) {
  switch (key.size()) {
    case 2: return key == "ph" ? &event.phase : key == "ts" ? &event.start : nullptr;
    case 3:
      return key == "cat"   ? &event.category
             : key == "pid" ? &event.process
             : key == "tid" ? &event.thread
             : key == "dur" ? &event.duration
                            : nullptr;
    case 4: return key == "name" ? &event.name : key == "args" ? &event.arguments : nullptr;
    default: return nullptr;
  }
}

Value* argument_of(Event& event, std::string_view key) {
  switch (key.size()) {
    case 4: return key == "grid" ? &event.grid : nullptr;
    case 5: return key == "block" ? &event.block : key == "bytes" ? &event.num_bytes : nullptr;
    case 10: return key == "Input Dims" ? &event.shapes : nullptr;
    case 11: return key == "correlation" ? &event.correlation : nullptr;
    case 13: return key == "Input Strides" ? &event.strides : key == "Fwd thread id" ? &event.forward_thread : nullptr;
    case 15:
      return key == "Sequence number" ? &event.sequence : key == "Collective name" ? &event.collective : nullptr;
    default: return nullptr;
  }
}

// Whether the value is a string, a number or null.
bool is_text(Value value) {
  return value.front() != '{' && value.front() != '[' && value != "true" && value != "false";
}

// Microseconds in plain digits -> ns; half a ns rounds up. False for any other notation (`ingest/traces/decimals.py`).
bool to_ns(Value text, int64_t& ns) {
  constexpr int kDecimals = 3, kMaxDigits = 19;
  uint64_t whole = 0, up = 1, down = 1;
  int digits = 0, decimals = 0;
  bool pointed = false;
  for (const char character : text) {
    if (character == '.') {
      pointed = true;
    } else if (is_digit(character) && ++digits <= kMaxDigits) {
      whole = whole * 10 + static_cast<uint64_t>(character - '0');
      decimals += pointed;
    } else {
      return false;
    }
  }
  for (int at = decimals; at < kDecimals; ++at) up *= 10;
  for (int at = kDecimals; at < decimals; ++at) down *= 10;
  if (digits == 0 || whole >= (std::numeric_limits<int64_t>::max() - down) / up) return false;
  ns = static_cast<int64_t>((whole * up + down / 2) / down);
  return true;
}

// A whole number of at most 18 digits, also in quotes, but at least `missing`, which also stands for an absent one and
// null.
bool to_integer(Value text, int64_t missing, int64_t& number) {
  constexpr size_t kMaxDigits = 18;
  number = missing;
  if (text.empty() || text == "null") return true;
  if (text.front() == '"') text = text.substr(1, text.size() - 2);
  if (text.empty()) return false;
  const bool negative = text.front() == '-';
  const std::string_view digits = text.substr(negative);
  if (digits.empty() || digits.size() > kMaxDigits) return false;
  int64_t sum = 0;
  for (const char digit : digits) {
    if (!is_digit(digit)) return false;
    sum = sum * 10 + (digit - '0');
  }
  number = std::max(negative ? -sum : sum, missing);
  return true;
}

bool is_values(Value list) { return !list.empty() && list != "[]"; }

class Piece {
 public:
  Piece(Decoder& decoder, const char* text, int64_t size, Row* rows, int64_t room)
      : decoder_(decoder), text_(text), reader_{text, text + size}, rows_(rows), room_(room) {}

  // Decodes the whole events. False if there is anything that Python must decode.
  bool decode(Decoded& result) {
    result = {};
    reader_.skip_space();
    while (reader_.take(',')) reader_.skip_space();
    while (*reader_.at == '{') {
      const Outcome outcome = read_event(result);
      if (outcome != Outcome::kRead) return outcome == Outcome::kCut;
      ++result.num_read;
      result.used = reader_.at - text_;
      reader_.skip_space();
      if (!reader_.take(',')) break;
      reader_.skip_space();
      if (*reader_.at == '{') result.used = reader_.at - text_;
    }
    return *reader_.at == ']' || reader_.at == reader_.end;
  }

 private:
  Outcome read_event(Decoded& result) {
    Event event;
    bool refused = false;
    const bool whole = reader_.read_object(0, [&](std::string_view key) {
      refused |= reader_.escaped;  // it may be another notation of a key that is known
      Value* field = field_of(event, key);
      const char* begin = reader_.at;
      if (field == &event.arguments) {
        if (!read_arguments(event, refused)) return false;
      } else if (!reader_.skip_value(1)) {
        return false;
      }
      if (field == nullptr) return true;
      refused |= field == &event.phase && !event.phase.empty();
      *field = {begin, static_cast<size_t>(reader_.at - begin)};
      return true;
    });
    if (!whole) return reader_.at == reader_.end ? Outcome::kCut : Outcome::kOther;
    if (refused || event.phase.size() != 3 || event.phase.front() != '"') return Outcome::kOther;
    const char phase = event.phase[1];
    if (phase != 'X') return std::strchr("BEiICbneSTpFstfPNODMVvRc()", phase) ? Outcome::kRead : Outcome::kOther;
    if (event.duration.empty()) return Outcome::kRead;
    if (result.num_rows == room_ || !write(event, rows_[result.num_rows])) return Outcome::kOther;
    ++result.num_rows;
    return Outcome::kRead;
  }

  bool read_arguments(Event& event, bool& refused) {
    reader_.unusual = event.unusual = false;
    event.correlation = event.sequence = event.forward_thread = event.num_bytes = event.collective = {};
    event.grid = event.block = event.shapes = event.strides = {};
    if (*reader_.at != '{') {
      refused |= *reader_.at == 't' || *reader_.at == 'f';
      return reader_.skip_value(1);
    }
    const bool whole = reader_.read_object(1, [&](std::string_view key) {
      refused |= reader_.escaped;
      const char* begin = reader_.at;
      if (!reader_.skip_value(2)) return false;
      Value* field = argument_of(event, key);
      if (field != nullptr) *field = {begin, static_cast<size_t>(reader_.at - begin)};
      return true;
    });
    event.unusual = reader_.unusual;
    return whole;
  }

  // False if a value is not of the expected form.
  bool write(const Event& event, Row& row) {
    if (!is_text(event.category) || !is_text(event.name) || !is_text(event.process) || !is_text(event.thread) ||
        !to_ns(event.start, row.start_ns) || !to_ns(event.duration, row.duration_ns) ||
        !to_integer(event.correlation, 0, row.correlation) || !to_integer(event.sequence, kNone, row.sequence) ||
        !to_integer(event.forward_thread, 0, row.forward_thread) ||
        !to_integer(event.num_bytes, kNone, row.num_bytes)) {
      return false;
    }
    row.category = decoder_.texts[kCategory].number(event.category);
    row.name = decoder_.texts[kName].number(event.name);
    row.lane = joined(kLane, {"[", event.process, ",", event.thread, "]"});
    const bool launched = !event.grid.empty() && !event.block.empty();
    row.launch = launched ? joined(kLaunch, {"\"grid\": ", event.grid, ", \"block\": ", event.block}) : kNone;
    const bool has_arguments = !event.arguments.empty() && event.arguments.front() == '{';
    row.arguments_begin = has_arguments ? static_cast<int32_t>(event.arguments.data() - text_) : 0;
    row.arguments_end = row.arguments_begin + (has_arguments ? static_cast<int32_t>(event.arguments.size()) : 0);
    const bool of_collective = !event.collective.empty() && event.collective != "null";
    row.flags = (is_values(event.shapes) ? kShapes : 0) | (is_values(event.strides) ? kStrides : 0) |
                (of_collective ? kCollective : 0) | (event.unusual ? kUnusual : 0);
    row.unused = 0;
    return true;
  }

  int32_t joined(Table table, std::initializer_list<std::string_view> parts) {
    decoder_.joined.clear();
    for (const std::string_view part : parts) decoder_.joined.append(part);
    return decoder_.texts[table].number(decoder_.joined);
  }

  Decoder& decoder_;
  const char* text_;
  Reader reader_;
  Row* rows_;
  const int64_t room_;
};

}  // namespace

EXPORT Decoder* traincope_create_decoder() {
  try {
    return new Decoder;
  } catch (const std::exception&) {
    return nullptr;
  }
}

EXPORT void traincope_destroy_decoder(Decoder* decoder) { delete decoder; }

// A zero byte must follow the text. False if Python must decode it.
EXPORT bool traincope_decode(
    Decoder* decoder, const char* text, int64_t size, Row* rows, int64_t room, Decoded* result) {
  if (decoder->failed || size > std::numeric_limits<int32_t>::max()) return false;
  try {
    return Piece(*decoder, text, size, rows, room).decode(*result);
  } catch (const std::exception&) {
    decoder->failed = true;
    return false;
  }
}

EXPORT int64_t traincope_num_texts(const Decoder* decoder, int table) { return decoder->texts[table].size(); }

EXPORT const char* traincope_text_bytes(const Decoder* decoder, int table) { return decoder->texts[table].bytes(); }

EXPORT const int64_t* traincope_text_begins(const Decoder* decoder, int table) {
  return decoder->texts[table].begins();
}
