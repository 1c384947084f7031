# Added by Everstep's test images. Debian builds torch without libuv, and a TCPStore asks for it unless told otherwise:
# USE_LIBUV=0 says so to init_process_group, but nothing says so to torchrun's own stores, and torchrun never starts.
# A store that asks for libuv by name still fails, as it does everywhere on Debian.
from torch._C._distributed_c10d import TCPStore as _PatchedStore

_store_init = _PatchedStore.__init__
_USE_LIBUV_POSITION = 8


def _store_init_without_libuv(self: _PatchedStore, *args: object, **kwargs: object) -> None:
    if len(args) <= _USE_LIBUV_POSITION:
        kwargs.setdefault("use_libuv", False)
    _store_init(self, *args, **kwargs)


_PatchedStore.__init__ = _store_init_without_libuv
