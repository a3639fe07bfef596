package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

const blockedWordsPath = "/api/v1/admin/blocked-words"

func (p *page) blockedWords() error {
	return showGet[api.Page[api.BlockedWordResponse]](p, blockedWordsPath, p.query("after"), "blocked_words", p.T("Blocked words"))
}

func (p *page) addBlockedWord() error {
	err := p.API(http.MethodPost, blockedWordsPath, api.BlockedWordRequest{Word: p.PostFormValue("word")}, nil)
	return p.finish(err, "/console/blocked-words", (*page).blockedWords, "word_blocked")
}

func (p *page) removeBlockedWord() error {
	err := p.API(http.MethodDelete, blockedWordsPath+"/"+p.id(), nil, nil)
	return p.finish(err, "/console/blocked-words", (*page).blockedWords, "word_allowed")
}
