package inbox

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
)

// Filters say of an identity which segments may have it. Each segment has a
// Bloom filter of 24 bits a message, in which an identity is eight bits. Those
// of 64 segments lie side by side, bit n of all in one word, so that eight
// words answer for 64 segments. One question in 24,000 is answered "may" by a
// segment that does not have it.
type filters struct {
	slabs []*slab
}

// A slab is the filters of 64 segments.
type slab struct {
	ready uint64 // the segments whose filter has all of their identities
	kept  uint64 // those whose filter is in the file
	words [filterBits]uint64
}

const (
	slabBits   = 6
	filterBits = segmentSize * 24
)

// A footprint is an identity's eight bits in a filter.
type footprint [8]uint32

// newFootprint takes them from a digest of the identity: whoever chooses ids
// cannot choose them.
func newFootprint(identity [sha256.Size]byte) (p footprint) {
	for i := range p {
		p[i] = uint32(uint64(binary.LittleEndian.Uint32(identity[4*i:])) * filterBits >> 32)
	}
	return p
}

// of is the slab of a segment, made when there is none.
func (f *filters) of(segment int64) (b *slab, bit uint64) {
	for int64(len(f.slabs)) <= segment>>slabBits {
		f.slabs = append(f.slabs, nil)
	}
	b = f.slabs[segment>>slabBits]
	if b == nil {
		b = &slab{}
		f.slabs[segment>>slabBits] = b
	}
	return b, 1 << (segment % (1 << slabBits))
}

// begin says that all identities of a segment will be added.
func (f *filters) begin(segment int64) {
	b, bit := f.of(segment)
	b.ready |= bit
}

func (f *filters) add(segment int64, p *footprint) {
	b, bit := f.of(segment)
	for _, n := range p {
		b.words[n] |= bit
	}
}

// before yields the segments that may have p: those up to newest, backwards.
func (f *filters) before(newest int64, p *footprint) func(yield func(int64) bool) {
	return func(yield func(int64) bool) {
		for n := newest >> slabBits; n >= 0; n-- {
			may := ^uint64(0)
			if n < int64(len(f.slabs)) && f.slabs[n] != nil {
				b := f.slabs[n]
				for _, i := range p {
					if may &= b.words[i]; may == 0 {
						break
					}
				}
				may |= ^b.ready
			}
			if n == newest>>slabBits {
				may &= 1<<(newest%(1<<slabBits)+1) - 1
			}
			for may != 0 {
				s := 63 - bits.LeadingZeros64(may)
				may &^= 1 << s
				if !yield(n<<slabBits + int64(s)) {
					return
				}
			}
		}
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// encode is the filter of a segment as it is kept in the file.
func (f *filters) encode(segment int64) (data []byte, crc int64) {
	b, bit := f.of(segment)
	data = make([]byte, filterBits/8)
	for i, word := range b.words {
		if word&bit != 0 {
			data[i/8] |= 1 << (i % 8)
		}
	}
	return data, filterCRC(segment, data)
}

// filterCRC is over the number of the segment too: one's filter is no other's.
func filterCRC(segment int64, data []byte) int64 {
	crc := crc32.Checksum(binary.BigEndian.AppendUint64(nil, uint64(segment)), castagnoli)
	return int64(crc32.Update(crc, castagnoli, data))
}

// decode takes a filter out of the file. It refuses what is damaged: a bit that
// is missing would make a message take effect twice.
func (f *filters) decode(segment int64, data []byte, crc int64) error {
	if len(data) != filterBits/8 {
		return fmt.Errorf("it has %d bytes, not %d", len(data), filterBits/8)
	}
	if filterCRC(segment, data) != crc {
		return errors.New("its checksum is wrong")
	}
	b, bit := f.of(segment)
	for i, t := range data {
		for ; t != 0; t &= t - 1 {
			b.words[i*8+bits.TrailingZeros8(t)] |= bit
		}
	}
	b.ready |= bit
	b.kept |= bit
	return nil
}
