// The operators of c10d: positions of their arguments, as Python gives them (`operations.py`), and their messages.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/TensorBase.h>

#include "record.h"

namespace traincope {

constexpr int kOperations = 32;
constexpr int kNowhere = -1;
enum Shape { kNothing, kTensor, kList, kNested };
enum Counted { kAsCollective, kAsMessage, kNotComparable };

// 32-bit integers in this order (`library.py`).
struct Operation {
  int32_t name, num_arguments, group, peer, tag, async_op, bytes, shape, fills, blocking, counted;
};

inline Operation operations[kOperations];

using Arguments = const c10::IValue*;

// False for tensors of torch.compile, of meta and of functionalisation: nothing is really sent.
inline bool is_real(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  const auto* implementation = tensor.unsafeGetTensorImpl();
  const auto keys = implementation->key_set();
  if (keys.has_backend(c10::BackendComponent::MetaBit) || keys.has(c10::DispatchKey::Functionalize)) return false;
  if (keys.has_any(c10::sparse_ks)) return true;
  return implementation->has_storage() && implementation->unsafe_storage().device_type() != c10::kMeta;
}

// The first tensor of an argument; null without one.
inline const at::Tensor* first_tensor(const c10::IValue& argument) {
  const c10::IValue* value = &argument;
  while (value->isList()) {
    const auto elements = value->toListRef();
    if (elements.empty()) return nullptr;
    value = &elements[0];
  }
  return value->isTensor() ? &value->toTensor() : nullptr;
}

inline uint16_t element_flags(const at::Tensor* tensor) {
  if (tensor == nullptr || !tensor->defined()) return 0;
  const auto type = tensor->scalar_type();
  const auto element = [&]() -> uint16_t {
    switch (type) {
      case at::kFloat: return 1;
      case at::kBFloat16: return 2;
      case at::kHalf: return 3;
      case at::kShort: case at::kInt: case at::kLong: return 5;
      case at::kDouble: return 6;
      default: return c10::elementSize(type) == 1 ? 4 : 7;
    }
  }();
  return static_cast<uint16_t>(element << kElementShift);
}

inline int64_t tensor_bytes(const c10::IValue& value) {
  const at::Tensor& tensor = value.toTensor();
  return tensor.defined() ? static_cast<int64_t>(tensor.numel() * tensor.itemsize()) : 0;
}

inline int64_t message_bytes(const Operation& operation, Arguments arguments) {
  int64_t total = 0;
  if (operation.shape == kTensor) return tensor_bytes(arguments[operation.bytes]);
  if (operation.shape == kNothing) return 0;
  for (const auto& element : arguments[operation.bytes].toListRef()) {
    if (operation.shape == kList) {
      total += tensor_bytes(element);
    } else {
      for (const auto& tensor : element.toListRef()) total += tensor_bytes(tensor);
    }
  }
  return total;
}

}  // namespace traincope
