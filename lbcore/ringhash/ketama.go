package ringhash

import (
	"encoding/binary"
	"hash/crc32"
	"iter"
	"strconv"
	"strings"

	"gatehouse.internal/lbcore"
)

// ketamaPoints is how many points a unit of weight has.
const ketamaPoints = 160

// ketamaRuns yields each member of a whole ring with the number of its points.
func ketamaRuns(in lbcore.Input) iter.Seq2[int, int] {
	return func(yield func(member, points int) bool) {
		for i, e := range in.Endpoints {
			if !yield(i, ketamaPoints*int(e.Weight)) {
				return
			}
		}
	}
}

// buildKetama builds a ring whose hashes hold their member in the lower half.
func (c Config) buildKetama(in lbcore.Input, st *lbcore.Storage, p *lbcore.Pacer) (lbcore.Selector, error) {
	runs, err := c.runs(in, p)
	if err != nil {
		return nil, err
	}
	n := 0
	points := st.U64
	var buf []byte
	for i, count := range runs {
		if err := p.Did(1); err != nil {
			return nil, err
		}
		buf = appendServer(buf[:0], in.Endpoints[i])
		base := crc32.ChecksumIEEE(buf)
		hash := uint32(0)
		for range count { // each point is hashed on from the one before
			buf = binary.LittleEndian.AppendUint32(buf[:0], hash)
			hash = crc32.Update(base, crc32.IEEETable, buf)
			points[n] = uint64(hash)<<32 | uint64(i)
			n++
			if err := p.Did(1); err != nil {
				return nil, err
			}
		}
	}
	if err := sortPoints[uint16](p, points[:n], nil, 0); err != nil {
		return nil, err
	}
	// Of points of one hash the first stays.
	kept := 0
	for _, point := range points[:n] {
		if kept == 0 || points[kept-1]>>32 != point>>32 {
			points[kept] = point
			kept++
		}
		if err := p.Did(1); err != nil {
			return nil, err
		}
	}
	a, err := newArcs(p, points[:kept:kept], st.U32)
	if err != nil {
		return nil, err
	}
	return &ketama{a}, nil
}

// appendServer appends what nginx hashes of a server: host, a zero byte and
// port. HashKey is read as nginx reads the name of a server.
// Source: ngx_stream_upstream_init_chash.
func appendServer(b []byte, e *lbcore.Endpoint) []byte {
	if e.HashKey == "" {
		if path := e.Addr.Path(); path != "" {
			return append(append(b, path...), 0)
		}
		ip := e.Addr.AddrPort()
		return strconv.AppendUint(append(ip.Addr().AppendTo(b), 0), uint64(ip.Port()), 10)
	}
	host, port := e.HashKey, ""
	if len(host) >= 5 && strings.EqualFold(host[:5], "unix:") {
		host = host[5:]
	} else if rest := strings.TrimRight(host, "0123456789"); strings.HasSuffix(rest, ":") {
		host, port = rest[:len(rest)-1], host[len(rest):]
	}
	return append(append(append(b, host...), 0), port...)
}

// ketama is the selector of nginx's ring: CRC-32 values in the upper halves of
// hashes, members in the lower ones.
type ketama struct{ arcs }

// First implements [lbcore.Selector].
func (r *ketama) First(k lbcore.Key) uint64 {
	if !k.Set {
		return r.first(k.Hash)
	}
	return r.first(uint64(k.CRC) << 32)
}

// Next implements [lbcore.Selector].
func (r *ketama) Next(_ lbcore.Key, at uint64) (int, uint64) {
	return int(uint32(r.hashes[at])), r.after(at)
}

// Site implements [lbcore.Sited].
func (r *ketama) Site(k lbcore.Key, at uint64) lbcore.Site {
	s := r.arcs.Site(k, at)
	s.Hash >>= 32
	return s
}
