package ringhash

import "encoding/binary"

// murmur2 is the 64-bit MurmurHash2 in the form of libstdc++'s std::hash, as
// Envoy's MURMUR_HASH_2 uses it: little endian, seed 0xc70f6907.
func murmur2(b []byte) uint64 {
	const mul, seed = 0xc6a4a7935bd1e995, 0xc70f6907
	mix := func(v uint64) uint64 { return v ^ v>>47 }
	h := uint64(seed) ^ uint64(len(b))*mul
	for ; len(b) >= 8; b = b[8:] {
		h ^= mix(binary.LittleEndian.Uint64(b)*mul) * mul
		h *= mul
	}
	if len(b) > 0 {
		var tail [8]byte
		copy(tail[:], b)
		h ^= binary.LittleEndian.Uint64(tail[:])
		h *= mul
	}
	return mix(mix(h) * mul)
}
