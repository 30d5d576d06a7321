# status: ok
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
handle = ctypes.create_string_buffer(b"\x80\0\0\0" + b"\0" * 200)
where = ctypes.c_int()
if libc.name_to_handle_at(-100, b"/", handle, ctypes.byref(where), 0) >= 0 or libc.open_by_handle_at(0, handle, 0) >= 0:
    print("BREACH")
