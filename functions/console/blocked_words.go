package console

import (
	"net/http"

	"github.com/sendonce/sendonce/shared/api"
)

const blockedWordsPath = "/api/v1/admin/blocked-words"

func (s *site) blockedWords(p *page) error {
	found, err := get[api.Page[api.BlockedWordResponse]](p, blockedWordsPath, p.query("after"))
	if err != nil {
		return err
	}
	return p.show("blocked_words", p.T("Blocked words"), found)
}

func (s *site) addBlockedWord(p *page) error {
	if _, err := post[api.BlockedWordResponse](p, blockedWordsPath, api.BlockedWordRequest{Word: p.PostFormValue("word")}); err != nil {
		return p.showRefused(err, "/console/blocked-words", s.blockedWords)
	}
	return p.done("/console/blocked-words", "word_blocked")
}

func (s *site) removeBlockedWord(p *page) error {
	err := p.API(http.MethodDelete, blockedWordsPath+"/"+p.id(), nil, nil)
	return p.finish(err, "/console/blocked-words", s.blockedWords, "word_allowed")
}
