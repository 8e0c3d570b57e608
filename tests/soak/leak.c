// Loaded into a daemon by LD_PRELOAD, it loses what PENSTOCK_LEAK names, four times a second: a soak must see it.

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kBlock = 2 << 20 };

static char* volatile last_block;  // else a compiler may leave out what nobody reads

static void* Wait(void* unused) {
  for (;;) pause();
  return unused;
}

static void Lose(const char* what) {
  if (strcmp(what, "memory") == 0) {
    char* const block = malloc(kBlock);
    if (block != NULL) memset(block, 1, kBlock);
    last_block = block;
  } else if (strcmp(what, "descriptors") == 0) {
    for (int i = 0; i < 2; ++i) {
      if (open("/dev/null", O_RDONLY) < 0) return;
    }
  } else if (strcmp(what, "threads") == 0) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, Wait, NULL) == 0) pthread_detach(thread);
  }
}

static void* Run(void* what) {
  for (;;) {
    usleep(250 * 1000);
    Lose(what);
  }
  return NULL;
}

__attribute__((constructor)) static void Start(void) {
  char* const what = getenv("PENSTOCK_LEAK");
  pthread_t thread;
  if (what != NULL && pthread_create(&thread, NULL, Run, what) == 0) pthread_detach(thread);
}
