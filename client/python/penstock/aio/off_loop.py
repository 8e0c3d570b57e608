"""Long computations of calls: on a thread, so that the event loop goes on."""

from asyncio import to_thread as off_loop

__all__ = ["off_loop"]
