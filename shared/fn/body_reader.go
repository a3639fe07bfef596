package fn

import (
	"context"
	"errors"
	"io"
)

// bodyReader reads a body into memory that is charged before it is used.
type bodyReader struct {
	memory  *callMemory
	charge  func(length int64) int64 // returns the memory for a body of this length and its decoded values
	buffer  []byte
	charged int64
}

// setCharge sets the charge for the body, with or without its decoded values, to cost. large is as for
// callMemory.reserve.
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

// grow gives the buffer a capacity of length bytes. The decoded values of a small body are charged only
// after the last byte of the body: bodies that are sent slowly must not use up the memory.
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

// read reads the body to its end. length is the length of the body, or -1 if the length is not known.
// A body of unknown length is charged as the buffer grows. start is called before the first byte is read.
func (b *bodyReader) read(ctx context.Context, body io.Reader, length int64, start func() error) ([]byte, error) {
	size := length + 1 // so that the buffer need not grow to read the end
	if length < 0 {
		size = largeBody / 4
	}
	if err := b.grow(ctx, size); err != nil {
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
		n, err := body.Read(b.buffer[len(b.buffer):cap(b.buffer)])
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
