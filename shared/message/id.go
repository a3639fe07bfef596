package message

import (
	"crypto/sha1"
	"encoding/binary"
)

// namespace is the UUID namespace of all message ids; it must never change.
const namespace = "\x5d\x8f\x2c\x4e\x0b\x71\x4a\x3d\x9e\x66\x1c\xd7\x43\xb0\x95\xfa"

// ID derives the id of a message, a UUID of version 5 (RFC 9562), from the caller's id, the sender and the
// client_msg_id. The same values always have the same id and different values different ones, so every repeat of a
// submission has the same primary key.
func ID(caller int64, from, clientMsgID string) [16]byte {
	name := make([]byte, 0, 512)
	name = append(name, namespace...)
	name = binary.BigEndian.AppendUint64(name, uint64(caller))
	name = binary.BigEndian.AppendUint64(name, uint64(len(from)))
	name = append(name, from...)
	name = binary.BigEndian.AppendUint64(name, uint64(len(clientMsgID)))
	name = append(name, clientMsgID...)
	sum := sha1.Sum(name)
	id := [16]byte(sum[:16])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}
