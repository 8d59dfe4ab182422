/* Bytes that posix_memalign has given and free has not taken back, and their peak. torch takes each tensor on a CPU
   from posix_memalign (c10/core/impl/alloc_cpu.cpp). All threads count, gloo's too. Preload it: LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#define PLACES (1u << 20)
#define DELETED ((void *)1)

extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static struct { void *block; size_t bytes; } blocks[PLACES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long long now, peak;

static size_t place_of(void *block) { return (((uintptr_t)block >> 6) * 0x9E3779B97F4A7C15ull) >> 44; }

long long allocated_bytes(void) { return now; }
long long allocated_peak(void) { return peak; }
void allocated_restart(void) {
  pthread_mutex_lock(&lock);
  peak = now;
  pthread_mutex_unlock(&lock);
}

int posix_memalign(void **result, size_t alignment, size_t bytes) {
  void *block = __libc_memalign(alignment, bytes);
  if (block == NULL) return ENOMEM;
  *result = block;
  pthread_mutex_lock(&lock);
  size_t place = place_of(block), tries = 0;
  while (blocks[place].block > DELETED && tries++ < PLACES) place = (place + 1) % PLACES;
  if (tries > PLACES) abort();
  blocks[place].block = block;
  blocks[place].bytes = bytes;
  now += (long long)bytes;
  if (now > peak) peak = now;
  pthread_mutex_unlock(&lock);
  return 0;
}

void free(void *block) {
  /* A block of posix_memalign has a multiple of 64 as its address. */
  if (block != NULL && ((uintptr_t)block & 63) == 0) {
    pthread_mutex_lock(&lock);
    for (size_t place = place_of(block); blocks[place].block != NULL; place = (place + 1) % PLACES)
      if (blocks[place].block == block) {
        now -= (long long)blocks[place].bytes;
        blocks[place].block = DELETED;
        break;
      }
    pthread_mutex_unlock(&lock);
  }
  __libc_free(block);
}
