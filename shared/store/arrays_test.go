package store

import (
	"reflect"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"github.com/sendonce/sendonce/shared/task"
)

func TestArraysAreEncodedAsPgxDoes(t *testing.T) {
	t.Parallel()
	ours, theirs := pgtype.NewMap(), pgtype.NewMap()
	registerArrays(ours)
	text, number, id, hash := "a \"b\" é", int64(-5), task.NewID(), task.Hash{1, 2}
	for oid, arrays := range map[uint32][]any{
		pgtype.TextArrayOID:    {[]string{"", text}, []string{}, []string(nil), []*string{&text, nil}, []*string{&text}, []*string{}},
		pgtype.VarcharArrayOID: {[]string{text}},
		pgtype.JSONArrayOID:    {[]*string{nil, &text}},
		pgtype.UUIDArrayOID:    {[]task.ID{id, {}}, []*task.ID{nil, &id}, []task.Hash{hash}, []*task.Hash{&hash, nil}},
		pgtype.Int2ArrayOID:    {[]int16{-1, 300}, []int32{7}, []int64{7}},
		pgtype.Int4ArrayOID:    {[]int32{-1, 1 << 30}, []int16{7}},
		pgtype.Int8ArrayOID:    {[]int64{-1, 1 << 60}, []*int64{nil, &number}, []int32{7}},
		pgtype.BoolArrayOID:    {[]bool{true, false}},
	} {
		for _, array := range arrays {
			for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
				want, err := theirs.Encode(oid, format, array, nil)
				require.NoError(t, err)
				got, err := ours.Encode(oid, format, array, nil)
				require.NoError(t, err)
				require.Equal(t, want, got, "%d %v %v", oid, reflect.TypeOf(array), array)
			}
		}
	}
}
