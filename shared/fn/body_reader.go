package fn

import (
	"context"
	"errors"
	"io"
)

// bodyReader reads a body into memory that is charged before it is used.
type bodyReader struct {
	memory  *callMemory
	charge  func(bytes int64) int64
	buffer  []byte
	charged int64
}

// take makes cost all that the body is charged.
func (b *bodyReader) take(ctx context.Context, cost int64, large bool) error {
	if cost == b.charged {
		return nil
	}
	if err := b.memory.reserve(ctx, cost-b.charged, large); err != nil {
		return err
	}
	b.charged = cost
	return nil
}

// reserve makes room for length bytes in all. What a small body is turned into is charged
// once all of it is there: bodies that are sent slowly must not use up the memory.
func (b *bodyReader) reserve(ctx context.Context, length int64) error {
	cost, large := length, length > largeBody
	if large {
		cost = b.charge(length)
	}
	if err := b.take(ctx, cost, large); err != nil {
		return err
	}
	larger := make([]byte, len(b.buffer), length)
	copy(larger, b.buffer)
	b.buffer = larger
	return nil
}

// read reads to the end. declared is the length of the body, which is charged at
// once; less than 0 when it is not known, and the body is charged as it grows.
// Before anything is read, start is called.
func (b *bodyReader) read(ctx context.Context, from io.Reader, declared int64, start func() error) ([]byte, error) {
	first := declared + 1 // to see the end behind it
	if declared < 0 {
		first = largeBody / 4
	}
	if err := b.reserve(ctx, first); err != nil {
		return nil, err
	}
	if err := start(); err != nil {
		return nil, err
	}
	for {
		if len(b.buffer) == cap(b.buffer) {
			if err := b.reserve(ctx, 2*int64(cap(b.buffer))); err != nil {
				return nil, err
			}
		}
		n, err := from.Read(b.buffer[len(b.buffer):cap(b.buffer)])
		b.buffer = b.buffer[:len(b.buffer)+n]
		if errors.Is(err, io.EOF) {
			has := int64(cap(b.buffer))
			return b.buffer, b.take(ctx, b.charge(has), has > largeBody)
		}
		if err != nil {
			return nil, err
		}
	}
}
