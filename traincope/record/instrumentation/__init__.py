"""The means to instrument torch: the guard, patches, dispatcher kernels, late imports, and torch's private names.

No hook is here. Hooks are in `record.communication`, `record.compute` and `record.gpu`.
"""
