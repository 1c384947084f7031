"""The edges: they see (`reflect`, `observe`), act (`apply`) and say (`report`). They decide nothing."""
