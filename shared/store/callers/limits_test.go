package callers

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// A new field of Grants fails this test until exceededBy compares it.
func TestGrantsBeyondThoseOfTheOperatorAreRefused(t *testing.T) {
	t.Parallel()
	mine := Grants{Roles: []string{"admin", "sender"}, Queues: []string{"bulk"}, BusinessTypes: []string{"coupon"}, Receives: []string{"orders.new"}, BestPriority: new(int64(2))}
	operator := &StoredCaller{Name: "ops", Grants: mine}
	manages := func(g Grants) bool { return operator.Manages(StoredCaller{Name: "ops.a", Grants: g}) }
	require.True(t, manages(mine))
	for i := range reflect.TypeFor[Grants]().NumField() {
		name := reflect.TypeFor[Grants]().Field(i).Name
		wider := mine
		field := reflect.ValueOf(&wider).Elem().Field(i)
		switch field.Kind() {
		case reflect.Slice:
			field.Set(reflect.ValueOf([]string{"wider"}))
		case reflect.Pointer:
			field.Set(reflect.New(field.Type().Elem()))
			field.Elem().SetInt(1)
		default:
			t.Fatalf("%s: add a wider value of this type to the test", name)
		}
		require.False(t, manages(wider), name)
		require.Error(t, operator.checkGrant("ops.a", wider), name)
	}
	for _, all := range []Grants{
		{Roles: mine.Roles, BusinessTypes: mine.BusinessTypes}, {Roles: mine.Roles, Queues: mine.Queues},
	} {
		require.False(t, manages(all), "an empty list means all")
	}
	require.True(t, manages(Grants{Roles: []string{"sender"}, Queues: mine.Queues, BusinessTypes: mine.BusinessTypes, BestPriority: mine.BestPriority}))
}
