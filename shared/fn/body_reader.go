package fn

import (
	"context"
	"errors"
	"io"
)

// bodyReader reads a body into memory that is charged before it is used.
type bodyReader struct {
	memory  *callMemory
	charge  func(length int64) int64 // the memory for a body of this length and what it is decoded to
	buffer  []byte
	charged int64
}

// setCharge changes the charge for the whole body to cost.
func (b *bodyReader) setCharge(ctx context.Context, cost int64, large bool) error {
	if cost == b.charged {
		return nil
	}
	if err := b.memory.reserve(ctx, cost-b.charged, large); err != nil {
		return err
	}
	b.charged = cost
	return nil
}

// grow makes the buffer length bytes large. What a small body is decoded to is charged only
// after the last byte: bodies that are sent slowly must not use up the memory.
func (b *bodyReader) grow(ctx context.Context, length int64) error {
	cost, large := length, length > largeBody
	if large {
		cost = b.charge(length)
	}
	if err := b.setCharge(ctx, cost, large); err != nil {
		return err
	}
	larger := make([]byte, len(b.buffer), length)
	copy(larger, b.buffer)
	b.buffer = larger
	return nil
}

// read reads the body to its end. declared is its length, or less than 0 if that is
// not known; then it is charged as it grows. start is called before the first read.
func (b *bodyReader) read(ctx context.Context, from io.Reader, declared int64, start func() error) ([]byte, error) {
	first := declared + 1 // so that the buffer need not grow to read the end
	if declared < 0 {
		first = largeBody / 4
	}
	if err := b.grow(ctx, first); err != nil {
		return nil, err
	}
	if err := start(); err != nil {
		return nil, err
	}
	for {
		if len(b.buffer) == cap(b.buffer) {
			if err := b.grow(ctx, 2*int64(cap(b.buffer))); err != nil {
				return nil, err
			}
		}
		n, err := from.Read(b.buffer[len(b.buffer):cap(b.buffer)])
		b.buffer = b.buffer[:len(b.buffer)+n]
		if errors.Is(err, io.EOF) {
			size := int64(cap(b.buffer))
			return b.buffer, b.setCharge(ctx, b.charge(size), size > largeBody)
		}
		if err != nil {
			return nil, err
		}
	}
}
