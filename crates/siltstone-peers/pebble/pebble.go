// Pebble as C functions, for src/engines/pebble.rs: the budget's settings, and its defaults for the rest.
//
// A call from Rust costs more than one from Go, so nothing here is called once an entry: a scan fills a buffer of the caller's. Keys and
// values are read where they lie in the caller's memory and nothing is allocated on either side, but for errors: each function returns
// nil or a text that the caller frees.
package main

/*
#include <stddef.h>
#include <stdint.h>

// As `Settings` in src/engines/pebble.rs.
typedef struct {
	uint64_t memtable_bytes, memtables, cache_bytes, block_bytes, filter_bits_per_key, threads, sync;
} settings;

// As `Batch` there.
typedef struct {
	size_t entries, bytes, next_bytes;
} batch;

// As `Figures` there.
typedef struct {
	uint64_t busy, debt_bytes, read_amp, flushes, compactions, cache_bytes, cache_hits, cache_misses;
} figures;
*/
import "C"

import (
	"encoding/binary"
	"runtime/cgo"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// What a handle stands for.
type store struct {
	db    *pebble.DB
	write *pebble.WriteOptions
}

// Errors and no news, on standard error.
type quiet struct{ pebble.Logger }

func (quiet) Infof(string, ...interface{}) {}

func of(handle C.uintptr_t) *store {
	return cgo.Handle(handle).Value().(*store)
}

// The caller's bytes, in place.
func bytes(at unsafe.Pointer, n C.size_t) []byte {
	return unsafe.Slice((*byte)(at), n)
}

// The text of an error, for the caller to free.
func told(err error) *C.char {
	if err == nil {
		return nil
	}
	return C.CString(err.Error())
}

// Opens the store in the folder `path`, or makes one, and says what stands for it from then on.
//
//export pebble_open
func pebble_open(path *C.char, s *C.settings, handle *C.uintptr_t) *C.char {
	threads := int(s.threads)
	options := &pebble.Options{
		// Left out it would be the oldest that can be read, with tables of rows.
		FormatMajorVersion:          pebble.FormatNewest,
		MemTableSize:                uint64(s.memtable_bytes),
		MemTableStopWritesThreshold: int(s.memtables),
		CacheSize:                   int64(s.cache_bytes),
		CompactionConcurrencyRange:  func() (int, int) { return 1, threads },
		Logger:                      quiet{pebble.DefaultLogger},
	}
	for i := range options.Levels {
		options.Levels[i].BlockSize = int(s.block_bytes)
		options.Levels[i].FilterPolicy = bloom.FilterPolicy(s.filter_bits_per_key)
	}
	options.ApplyCompressionSettings(func() pebble.DBCompressionSettings { return pebble.DBCompressionNone })
	db, err := pebble.Open(C.GoString(path), options)
	if err != nil {
		return told(err)
	}
	write := pebble.NoSync
	if s.sync != 0 {
		write = pebble.Sync
	}
	*handle = C.uintptr_t(cgo.NewHandle(&store{db, write}))
	return nil
}

// Closes the store; nothing stands for it any more.
//
//export pebble_close
func pebble_close(handle C.uintptr_t) *C.char {
	err := of(handle).db.Close()
	cgo.Handle(handle).Delete()
	return told(err)
}

//export pebble_put
func pebble_put(handle C.uintptr_t, key unsafe.Pointer, keyBytes C.size_t, value unsafe.Pointer, valueBytes C.size_t) *C.char {
	s := of(handle)
	return told(s.db.Set(bytes(key, keyBytes), bytes(value, valueBytes), s.write))
}

//export pebble_delete
func pebble_delete(handle C.uintptr_t, key unsafe.Pointer, keyBytes C.size_t) *C.char {
	s := of(handle)
	return told(s.db.Delete(bytes(key, keyBytes), s.write))
}

// Copies the value, as far as there is room, and says how many bytes it has: -1 if there is none.
//
//export pebble_get
func pebble_get(
	handle C.uintptr_t, key unsafe.Pointer, keyBytes C.size_t, into unsafe.Pointer, room C.size_t, valueBytes *C.ptrdiff_t,
) *C.char {
	value, closer, err := of(handle).db.Get(bytes(key, keyBytes))
	if err == pebble.ErrNotFound {
		*valueBytes = -1
		return nil
	}
	if err != nil {
		return told(err)
	}
	copy(bytes(into, room), value)
	*valueBytes = C.ptrdiff_t(len(value))
	return told(closer.Close())
}

// Copies `most` entries from the first key at or after `from`, as far as there is room: the bytes of the key and those of the value, as
// two integers of 32 bits, then the key and the value. `next_bytes` are those of the first entry that had no room, 0 if none had not.
//
//export pebble_scan
func pebble_scan(
	handle C.uintptr_t, from unsafe.Pointer, fromBytes C.size_t, most C.size_t, into unsafe.Pointer, room C.size_t, got *C.batch,
) *C.char {
	iterator, err := of(handle).db.NewIter(nil)
	if err != nil {
		return told(err)
	}
	*got = C.batch{}
	rest := bytes(into, room)
	for valid := iterator.SeekGE(bytes(from, fromBytes)); valid; valid = iterator.Next() {
		key := iterator.Key()
		value, err := iterator.ValueAndErr()
		if err != nil {
			break // Close says it too.
		}
		n := 8 + len(key) + len(value)
		if n > len(rest) {
			got.next_bytes = C.size_t(n)
			break
		}
		binary.NativeEndian.PutUint32(rest, uint32(len(key)))
		binary.NativeEndian.PutUint32(rest[4:], uint32(len(value)))
		copy(rest[8:], key)
		copy(rest[8+len(key):], value)
		rest = rest[n:]
		got.entries++
		if got.entries == most {
			break
		}
	}
	got.bytes = room - C.size_t(len(rest))
	return told(iterator.Close())
}

// Flushes the memtables and waits for it.
//
//export pebble_flush
func pebble_flush(handle C.uintptr_t) *C.char {
	return told(of(handle).db.Flush())
}

// What the store has counted. It is busy while anything is flushed, merged or deleted, or due for it; the statistics of new tables may
// make them due.
//
//export pebble_figures
func pebble_figures(handle C.uintptr_t, f *C.figures) {
	db := of(handle).db
	isDue, _ := db.GetWaitingCompaction()
	m := db.Metrics()
	*f = C.figures{
		debt_bytes:   C.uint64_t(m.Compact.EstimatedDebt),
		read_amp:     C.uint64_t(m.ReadAmp()),
		flushes:      C.uint64_t(m.Flush.Count),
		compactions:  C.uint64_t(m.Compact.Count),
		cache_bytes:  C.uint64_t(m.BlockCache.Size),
		cache_hits:   C.uint64_t(m.BlockCache.Hits),
		cache_misses: C.uint64_t(m.BlockCache.Misses),
	}
	running := m.Flush.NumInProgress + m.Compact.NumInProgress
	if isDue || running+m.Table.PendingStatsCollectionCount+m.Table.ObsoleteCount > 0 {
		f.busy = 1
	}
}

// Does nothing: what a call costs.
//
//export pebble_nothing
func pebble_nothing() {}

func main() {}
