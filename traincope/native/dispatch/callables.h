// A function that Python calls as its own: a call by ctypes takes several times as long.
//
// Only hooks that torch.compile skips call it, because TorchDynamo warns where it meets such a function.
//
// The caller holds Python's lock. The declarations are those of Python's stable ABI, so no header of Python's is needed.
// They are weak, because the programs that test the kernels have no Python.
#pragma once

#include <c10/util/python_stub.h>

#include "places.h"

struct Definition {  // PyMethodDef
  const char* name;
  void* function;
  int flags;
  const char* doc;
};

extern "C" {
[[gnu::weak]] PyObject* PyCFunction_NewEx(Definition* definition, PyObject* self, PyObject* module);
[[gnu::weak]] int PyDict_SetItem(PyObject* dictionary, PyObject* key, PyObject* item);
[[gnu::weak]] PyObject* PyErr_Occurred();
[[gnu::weak]] PyObject* PyLong_FromLongLong(long long value);
[[gnu::weak]] long long PyLong_AsLongLong(PyObject* number);
[[gnu::weak]] PyObject* PyTuple_New(ssize_t size);
[[gnu::weak]] int PyTuple_SetItem(PyObject* tuple, ssize_t at, PyObject* item);  // takes over the item's reference
[[gnu::weak]] void Py_IncRef(PyObject* object);
[[gnu::weak]] void Py_DecRef(PyObject* object);
}

namespace traincope {

constexpr int kArray = 0x0080;   // METH_FASTCALL
constexpr int64_t kEndWord = 1;  // events.END_WORD

// begin_phase(phase, name, opened, key): opens the record that `ThreadWriter.begin_phase` opens, and puts the same slot
// into `opened`, where it is found if a signal handler's exception follows. Returns the slot; 0 if the calling thread has
// no place with room: then that function opens the record.
inline PyObject* called_begin_phase(PyObject*, PyObject* const* arguments, ssize_t num_arguments) {
  if (num_arguments != 4 || bound() == nullptr) return PyLong_FromLongLong(0);
  const auto phase = static_cast<uint8_t>(PyLong_AsLongLong(arguments[0]));
  Fields fields;
  fields.name = static_cast<uint32_t>(PyLong_AsLongLong(arguments[1]));
  fields.peer = 0;
  if (PyErr_Occurred() != nullptr) return nullptr;
  PyObject* slot = PyTuple_New(2);  // before the rest: it may collect garbage, which may write records
  if (slot == nullptr) return nullptr;
  Opened opened;
  if (Place* place = bound())
    opened = open_records(*place, sizeof(Record), [&](Record* at) {
      const auto step = static_cast<int32_t>(shared.step.load(std::memory_order_relaxed));
      write_open(at, kPhase, fields, step, monotonic_ns(), phase);
    });
  if (opened.record == nullptr) {
    Py_DecRef(slot);
    return PyLong_FromLongLong(0);
  }
  const int64_t offset = reinterpret_cast<char*>(opened.record) - opened.segment->base;
  auto* words = static_cast<PyObject*>(opened.segment->words);
  Py_IncRef(words);
  opened.segment->open.fetch_sub(1);  // the slot keeps the segment from now on, as each of Python's does
  PyObject* index = PyLong_FromLongLong(offset / static_cast<int64_t>(sizeof(int64_t)) + kEndWord);
  PyTuple_SetItem(slot, 0, words);
  PyTuple_SetItem(slot, 1, index);
  if (index == nullptr || PyDict_SetItem(arguments[2], arguments[3], slot) != 0) {
    close(opened.record, monotonic_ns());
    Py_DecRef(slot);
    return nullptr;
  }
  return slot;
}

inline Definition begin_phase_definition = {
    "begin_phase", reinterpret_cast<void*>(&called_begin_phase), kArray, nullptr};

}  // namespace traincope
